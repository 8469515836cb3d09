"""What a halt may depend on in the settings of topics: read anew before it counts, and while a run goes on."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from mirror_pipeline.engine.driver.state import LaneState, TopicRun
from mirror_pipeline.engine.driver.topics.policies import RulesLook, SourcePolicy, apply_policy, source_policies
from mirror_pipeline.engine.tasks.read.messages import RangeOutcome
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, MirrorError, TopicHalted
from mirror_pipeline.halts import Halt
from mirror_pipeline.kafka.cluster_info import ConfigValue, TopicInfo
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.model import HoleCause, OffsetRange
from mirror_pipeline.topics.plan import TargetCluster, plan_target
from tests.support.source_batches import Taken, batch

CLOSED = broker_error(29, "read the settings of t")
PASSING = broker_error(7, "read the settings of t")


class Settings:
    """An admin client of one cluster; counts the questions."""

    def __init__(self, answer: dict[str, str] | MirrorError) -> None:
        self.answer = answer
        self.asked: list[list[str]] = []

    def topic_configs(self, names: Collection[str]) -> dict[str, dict[str, ConfigValue] | BrokerError]:
        self.asked.append(sorted(names))
        if isinstance(self.answer, BrokerError):
            return dict.fromkeys(names, self.answer)
        if isinstance(self.answer, MirrorError):
            raise self.answer
        return {name: {key: ConfigValue(value) for key, value in self.answer.items()} for name in names}


def halt(code: str) -> Halt:
    return Halt("t", "why", code=code, partition=0, span=(5, 9))


def look(source: Settings, target: Settings, run: TopicRun) -> RulesLook:
    return RulesLook(LaneState(topics={"t": run}), source, target)  # type: ignore[arg-type]


def outcome(code: str) -> RangeOutcome:
    return RangeOutcome("t", 0, 5, 0, 0, halt=halt(code) if code else None)


DELETE, COMPACT = {"cleanup.policy": "delete"}, {"cleanup.policy": "compact,delete"}
LARGE = {"max.message.bytes": "5000000"}


@pytest.mark.parametrize("answer", [CLOSED, PASSING, {}])
def test_unknown_settings_are_not_compacted(answer: dict[str, str] | MirrorError) -> None:
    policy = source_policies(["t"], Settings(answer))["t"]  # type: ignore[arg-type]
    assert (policy.compacted, bool(policy.unread), policy.passing) == (False, True, answer is PASSING)


def test_a_hole_of_a_topic_with_unknown_settings_halts_and_says_what_to_grant() -> None:
    rules = RangeRules(OffsetRange("t", 0, 0, 8, 10**6, "id", False), 10**6, False, False, (), CLOSED.message)
    taken = Taken(0, 8)
    taken.reader.rules = rules
    with pytest.raises(TopicHalted) as halted:
        taken.take(batch(0, 2), batch(5, 3))
    assert (halted.value.halt.code, halted.value.halt.span) == ("unexplained_hole", (2, 5))
    assert "is unknown" in halted.value.message
    assert "grant DESCRIBE_CONFIGS on the topic" in halted.value.hint
    assert Taken(0, 8, gaps=True).take(batch(0, 2), batch(5, 3)).holes == [(2, 5, HoleCause.UNEXPLAINED)]


def test_a_fresh_topic_remembers_that_its_settings_are_unread_and_a_known_one_what_is_known() -> None:
    fresh, known = TopicRun("t", "t", "i"), TopicRun("t", "t", "i", compacted=True)
    unread = SourcePolicy(compacted=False, unread="the broker is busy", passing=True)
    apply_policy(fresh, unread, fresh=True)
    apply_policy(known, unread)
    assert (fresh.settings_unread, known.compacted, known.settings_unread) == ("the broker is busy", True, "")
    apply_policy(fresh, SourcePolicy(compacted=True))
    assert (fresh.compacted, fresh.settings_unread) == (True, "")


def test_nobody_is_asked_while_nothing_halts() -> None:
    source, target = Settings(DELETE), Settings(LARGE)
    rules = look(source, target, TopicRun("t", "east.t", "i"))
    given = [outcome(""), outcome("corrupt")]
    assert rules.reconsider(given) == given
    rules.resume_resolved()
    assert (source.asked, target.asked) == ([], [])


def test_a_hole_in_a_topic_that_was_made_compacted_is_read_again() -> None:
    run = TopicRun("t", "east.t", "i")
    (judged,) = look(Settings(COMPACT), Settings(LARGE), run).reconsider([outcome("unexplained_hole")])
    assert (judged.halt, judged.error, run.compacted) == (None, "", True)


def test_a_hole_that_the_settings_do_not_explain_still_halts() -> None:
    for answer in (DELETE, CLOSED):
        (judged,) = look(Settings(answer), Settings(LARGE), TopicRun("t", "east.t", "i")).reconsider([outcome("unexplained_hole")])
        assert judged.halt is not None


@pytest.mark.parametrize("trouble", [PASSING, ClusterUnreachable("src", "gone")])
def test_a_hole_waits_while_the_settings_cannot_be_read(trouble: MirrorError) -> None:
    (judged,) = look(Settings(trouble), Settings(LARGE), TopicRun("t", "east.t", "i")).reconsider([outcome("unexplained_hole")])
    assert judged.halt is None
    assert "cannot be read now" in judged.error


def test_a_target_that_takes_larger_batches_by_now_ends_an_oversize() -> None:
    run = TopicRun("t", "east.t", "i", max_batch_bytes=1_000_000)
    rules = look(Settings(DELETE), Settings(LARGE), run)
    (judged,) = rules.reconsider([outcome("oversize")])
    assert (judged.halt, run.max_batch_bytes) == (None, 5_000_000)
    (judged,) = rules.reconsider([outcome("oversize")])
    assert judged.halt is not None, "a record above the new limit would be tried for ever"


@pytest.mark.parametrize("code", ["unexplained_hole", "oversize"])
def test_a_halted_topic_goes_on_in_the_same_run_once_its_settings_allow_it(code: str) -> None:
    source, target = Settings(DELETE), Settings({"max.message.bytes": "1000000"})
    run = TopicRun("t", "east.t", "i", max_batch_bytes=1_000_000, halted=halt(code))
    rules = look(source, target, run)
    rules.resume_resolved()
    assert run.halted is not None
    source.answer, target.answer = COMPACT, LARGE
    rules.resume_resolved()
    assert run.halted is None


def test_plan_says_what_unread_settings_mean() -> None:
    topic = TopicInfo("t", 1, "id", replication_factor=1)
    made = plan_target(topic, None, None, None, target_topic="east.t", cluster=TargetCluster("west", "h:1", 1))
    assert any("compaction cannot be distinguished from loss" in warning for warning in made.warnings)
