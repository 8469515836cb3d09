"""The source as the reading loop sees it: where partitions end, who leads them, what cannot be read now, whose log is another.

A partition that cannot be read is put off alone: it has no leader, its leader is silent, refuses, or lags. When its back-off
ends, one request looks up the leaders of all due partitions. Nothing here waits for one broker longer than ``SilentBrokers`` says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from mirror_pipeline.engine.driver.context import LaneContext, backoff
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.read.divergence import cut_off, diverged, of_same_topic, other_ids
from mirror_pipeline.engine.driver.read.source_watch import SourceWatch
from mirror_pipeline.engine.driver.silent_brokers import SilentBrokers, prober
from mirror_pipeline.engine.driver.state import PartitionState
from mirror_pipeline.engine.tasks.read.messages import PATIENT_ROUND_TRIPS, RangeOutcome, ReadResult
from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.halts import Halt, log_internal, recreated, refused
from mirror_pipeline.kafka.answers import LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import Action, broker_error, lookup
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.model import TopicPartition

log = logging.getLogger(__name__)

QUIET_LOOK_SECONDS = 5.0
"""Between two looks at all end offsets while other answers tell what is new."""
# Looks at all ends before small micro-batches take at most 1/LOOK_SHARE of a core.
LOOK_SHARE = 20
NEWS_SECONDS, MOST_NEWS_SECONDS = 0.5, 2.0
"""How long the source's brokers hold a question for news open; a stop waits for it. Longer for thousands of partitions."""
# Between two looks for another leader of what a silent broker leads; the probe says when the broker itself is back.
LOOK_FOR_LEADER_SECONDS = 1.0
# Those that are due so soon are looked up with those that are due: one question for all.
TOGETHER_SECONDS = 0.5
MAY_PASS = (Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME, Action.RESEEK)


class SourceSide:
    """Asks the source on behalf of the reading loop; used by its thread only.

    Args:
        context: the lane's.
        client: the source.
    """

    def __init__(self, context: LaneContext, client: WireClient) -> None:
        self._context = context
        self._state = context.state
        self._client = client
        self._watch = SourceWatch(client)
        self.brokers = SilentBrokers(prober(context.source), most=context.mirror.engine.request_timeout)
        self._silent: frozenset[int] = frozenset()
        self._looked = self._look_cost = 0.0

    def end(self) -> None:
        """Ask nothing more."""
        self.brokers.end()

    @property
    def within(self) -> float:
        """Seconds for a question to all leaders."""
        return max(self.brokers.longest(), PATIENT_ROUND_TRIPS * self._client.round_trip)

    def look_up(self) -> None:
        """Find the leaders of what was put off, once its time is over, or at once when a silent broker answers again.

        Raises:
            ClusterUnreachable: no broker answers.
        """
        silent = frozenset(self.brokers.now)
        back, self._silent = self._silent - silent, silent
        self._client.avoid(silent)
        now = time.monotonic()
        with self._state.lock:
            waiting = [part for part in self._state.live() if part.reading.unread]
            due = [part for part in waiting if back or part.reading.read_at <= now + TOGETHER_SECONDS]
            if not back and not any(part.reading.read_at <= now for part in due):
                return
        for part in due:
            self._client.forget(part.source)
        leaders, errors = self._client.leaders([part.source for part in due], patience=0)
        with self._state.lock:
            for part in due:
                if part.source in errors:
                    self._put_off(part, errors[part.source].message)
                elif leaders[part.source] in silent:
                    part.reading.put_off(self.brokers.now.get(leaders[part.source], part.reading.unread), delay=LOOK_FOR_LEADER_SECONDS)
                else:
                    part.reading.unread = ""

    def look_is_due(self, *, known: bool, small: bool) -> bool:
        """Whether to look at all ends now.

        Args:
            known: open questions, or what is read, tell most of it; over a long link a look takes the time of megabytes.
            small: the micro-batches are small. What came during the pause after one would wait for the pause after the next.
        """
        pause = QUIET_LOOK_SECONDS if known else self._context.mirror.engine.poll_interval
        if small and not known:
            pause = min(pause, LOOK_SHARE * self._look_cost)
        return time.monotonic() - self._looked >= pause

    def refresh_ends(self) -> None:
        """Ask for the last stable offsets of all partitions that can be read; a ``once`` run asks for each until it has the answer."""
        with self._state.lock:
            wanted = [part.source for part in self._state.ready() if not (self._context.once and part.reading.end_known)]
        self._looked, began = time.monotonic(), time.thread_time()
        self.ask_ends(wanted)
        self._look_cost = time.thread_time() - began

    def ask_ends(self, wanted: Collection[TopicPartition]) -> None:
        """Ask for the last stable offsets of some; what cannot be asked now is put off, what seems cut off is looked at twice."""
        if not wanted:
            return
        answers = self._client.list_offsets(dict.fromkeys(wanted, LATEST_TIME), isolation=1, within=self.within)
        self._note_silent()
        suspects = {}
        with self._state.lock:
            for part in self._state.live():
                answer = answers.get(part.source)
                if answer is None:
                    continue
                if answer.error:
                    if not part.reading.unread:
                        self._failed(part, broker_error(answer.error, str(part.source)))
                elif 0 <= answer.offset < part.staged and part.reading.hard_end is None:
                    suspects[part.source] = part.staged
                elif answer.offset >= 0 and not (self._context.once and part.reading.end_known):
                    part.reading.end, part.reading.end_known = answer.offset, True
        self._look_again(suspects)

    def await_news(self) -> bool:
        """Wait until the source has news of what can be read, or something that was put off is due; whether brokers were asked.

        Raises:
            ClusterUnreachable: no broker answers.
        """
        with self._state.lock:
            at = {part.source: part.staged for part in self._state.ready() if part.reading.hard_end is None}
            due = min((part.reading.read_at for part in self._state.live() if part.reading.unread), default=None)
        if at:
            self._state.source_back()
        elif (error := self.unread()) is not None:
            self._state.source_silent(error.message)
        poll = self._context.mirror.engine.poll_interval
        most = None if due is None else max(0.05, due - time.monotonic())
        seconds = min(MOST_NEWS_SECONDS, NEWS_SECONDS + len(at) / 1000)
        news = self._watch.wait(at, seconds=seconds, most=most, within=self.within) if at else {}
        if not at or not self._watch.asks and not news:
            self._context.stop.wait(poll if most is None else min(poll, most))
        self._note_silent()
        self._raise_ends({tp: answer for tp, answer in news.items() if not answer.error})
        self.ask_ends([tp for tp, answer in news.items() if lookup(answer.error).action is Action.RESEEK])
        with self._state.lock:
            for part in self._state.ready():
                if part.source in news and (code := news[part.source].error):
                    self._failed(part, broker_error(code, str(part.source)))
        return bool(at)

    def take_results(self, results: Sequence[ReadResult]) -> None:
        """What the tasks found out about brokers."""
        for result in results:
            for node, seconds in result.heard.items():
                self.brokers.heard(node, seconds)
            for node, why in result.silent.items():
                self._lost(node, why)

    def apply_outcome(self, part: PartitionState, outcome: RangeOutcome) -> None:
        """Take over what a range's reading says of its partition; with the state locked."""
        part.reading.mark = outcome.mark or part.reading.mark
        if outcome.batches:  # of the source: in the buffer small ones are merged
            part.reading.bytes_per_batch = outcome.bytes / outcome.batches
        if not self._context.once and outcome.end >= part.staged and not outcome.error:
            part.reading.end = max(part.reading.end, outcome.end)
        if outcome.halt is not None:
            log_internal(outcome.halt)
            self._state.halt(outcome.topic, outcome.halt, sendable=True)
        elif outcome.error:
            log.info("staging %s[%s]: %s", outcome.topic, outcome.partition, outcome.error)
            self._put_off(part, outcome.error)
        else:
            part.reading.was_read()

    def unread(self) -> ConnectionLost | None:
        """What a ``once`` run waits for when all else is read: partitions that cannot be read now."""
        with self._state.lock:
            waiting = [part for part in self._state.live() if part.reading.unread and part.unfinished]
        if not waiting:
            return None
        more = f", and {len(waiting) - 1} more partitions" if len(waiting) > 1 else ""
        return ConnectionLost(f"{waiting[0].source}{more} cannot be read: {waiting[0].reading.unread}", hint="bring the broker up")

    def another_log(self, outcomes: Sequence[RangeOutcome]) -> set[str]:
        """Topics whose log, as read now, does not continue what was read before; halted if a second look confirms it.

        What was read belongs to the incarnation only if the topic still has that id after the read. And a new leader
        may have another log: then the batch read last must still be in it. What cannot be asked now is not taken over either.

        Raises:
            ClusterUnreachable: no broker answers.
        """
        names = {outcome.topic for outcome in outcomes if outcome.mark is not None or outcome.quarantined or outcome.halt is not None}
        with self._state.lock:
            known = {name: self._state.topics[name].incarnation for name in names}
            moved = [self._state.topics[o.topic].partitions[o.partition] for o in outcomes if self._other_epoch(o)]
        other = other_ids(self._client, known, names)
        asked = [(part, *self._diverged(part)) for part in moved]
        suspects = [part for part, halt, determined in asked if halt is not None]
        refused = {*other, *(part.source.topic for part, halt, determined in asked if halt is not None or not determined)}
        if (other or suspects) and not self._context.stop.wait(divergence.SECOND_LOOK_SECONDS):
            self._client.ask_elsewhere()
            halts = [recreated(name, known[name], found) for name, found in other_ids(self._client, known, other).items()]
            for part in suspects:
                self._client.forget(part.source)
            lost = [halt for part in suspects if (halt := self._diverged(part)[0]) is not None]
            self._halt([*halts, *of_same_topic(self._client, known, lost)])
        return refused

    def _other_epoch(self, outcome: RangeOutcome) -> bool:
        """Whether the range was read from a leader that came after the one of the batch read last."""
        mark = self._state.topics[outcome.topic].partitions[outcome.partition].reading.mark
        return mark is not None and 0 <= outcome.first_epoch != mark.epoch  # an earlier one: damage, which no checksum tells

    def _diverged(self, part: PartitionState) -> tuple[Halt | None, bool]:
        """The halt if the log is another one, and whether that could be determined."""
        with self._state.lock:
            run = self._state.topics[part.source.topic]
            compacted = run.compacted or bool(run.settings_unread)
        if part.reading.mark is None:
            return None, True
        try:
            return diverged(self._client, part.source, part.reading.mark, part.staged, compacted=compacted, within=self.within), True
        except (BrokerError, ConnectionLost) as error:
            self._note_silent()
            with self._state.lock:
                if isinstance(error, BrokerError):
                    self._failed(part, error)
                else:
                    self._put_off(part, error.message)
            return None, False

    def _look_again(self, suspects: Mapping[TopicPartition, int]) -> None:
        """Logs seem to end before what was read of them: ask once more, and halt the topics for which that is so."""
        if suspects and not self._context.stop.wait(divergence.SECOND_LOOK_SECONDS):
            with self._state.lock:
                known = {name: run.incarnation for name, run in self._state.topics.items()}
            self._halt(cut_off(self._client, suspects, known, within=self.within))

    def _halt(self, halts: Iterable[Halt]) -> None:
        with self._state.lock:
            for halt in halts:
                self._state.halt(halt.topic, halt, sendable=True)

    def _raise_ends(self, answers: Mapping[TopicPartition, FetchedPartition]) -> None:
        """Take over ends from fetch answers. They may be old, or of a leader that lags, so they never lower a known end."""
        with self._state.lock:
            for part in self._state.live():
                if part.source in answers and answers[part.source].last_stable_offset >= part.staged:
                    part.reading.end, part.reading.end_known = max(part.reading.end, answers[part.source].last_stable_offset), True

    def _failed(self, part: PartitionState, error: BrokerError) -> None:
        """A leader's error: it may pass, or ends the topic's copy; with the state locked."""
        if lookup(error.code).action in MAY_PASS:
            self._put_off(part, error.message)
        else:
            self._state.halt(part.source.topic, refused(part.source, error), sendable=True)

    def _put_off(self, part: PartitionState, why: str) -> None:
        self._client.forget(part.source)
        part.reading.put_off(why, delay=backoff(part.reading.read_failures))

    def _note_silent(self) -> None:
        for node, why in self._client.take_silent().items():
            self._lost(node, why)

    def _lost(self, node: int, why: str) -> None:
        """A broker is silent: put off whatever it leads."""
        self.brokers.lost(node, why)
        self._silent |= {node}
        self._client.avoid(self._silent)
        with self._state.lock:
            for part in self._state.live():
                if self._client.known_leader(part.source) == node and not part.reading.unread:
                    part.reading.put_off(why, delay=LOOK_FOR_LEADER_SECONDS)
