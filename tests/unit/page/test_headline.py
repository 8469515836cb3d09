"""What is said of a mirror first, by its facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.exporter.history import History
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.page.headline import GOOD, TROUBLE, WAITING, WORKING, headline
from mirror_pipeline.reports import LaneStatus, MirrorStatus
from mirror_pipeline.text import clock

NOW = 1_700_000_000.0
LANE = LaneStatus("lane-0", "running", NOW, 1, "h", NOW, (), 1, 1, 1, 10.0, 4_200_000.0)


def status(*lanes: LaneStatus) -> MirrorStatus:
    return MirrorStatus("m", "east", "west", lanes, 0, 1, 0, 0, 0)


def topic(name: str = "t", *, lag: int = 0, unread: int = 0, seconds: float | None = 0.0, **state: str) -> TopicLag:
    part = PartitionLag(0, 100, 100 + lag, 100 + lag - unread, lag)
    return TopicLag(name, name, (part,), seconds, reason="because", unread_seconds=seconds if unread else None, **state)  # type: ignore[arg-type]


def facts(*topics: TopicLag, lanes: tuple[LaneStatus, ...] = (LANE,), at: float = NOW, error: str = "") -> Facts:
    seconds = max((found.lag_seconds or 0.0 for found in topics), default=0.0)
    return Facts("m", status(*lanes), lag=MirrorLag("m", topics, seconds), lag_at=at, error=error)


@pytest.mark.parametrize(
    ("seen", "tone", "begin"),
    [
        (Facts("m"), WAITING, "being looked at"),
        (Facts("m", error="the ledger is gone"), TROUBLE, "not known: the ledger is gone"),
        (facts(), WAITING, "no topic is selected"),
        (facts(topic()), GOOD, "in step"),
        (facts(topic(), lanes=()), GOOD, "in step; no lane is running"),
        (facts(topic(lag=5, seconds=2.0)), GOOD, "in step"),
        (facts(topic(lag=5), lanes=()), TROUBLE, "not running: 5 records wait"),
        (facts(topic(state="paused"), topic("u", state="promoted")), WAITING, "paused: because"),
        (facts(topic(state="promoted")), WAITING, "copies nothing: because"),
        (facts(topic(state="halted", code="corrupt"), topic("u")), TROUBLE, "1 of 2 topics halted: t (corrupt); accept it on"),
        (facts(topic(state="halted", code="CODE", hint="do this")), TROUBLE, "1 of 1 topic halted: t (CODE); do this"),
        (facts(topic(lag=1), lanes=(replace(LANE, target_down_since=NOW),)), TROUBLE, "the target is down since"),
        (facts(topic(lag=1), lanes=(replace(LANE, source_down_since=NOW),)), TROUBLE, "the source is down since"),
        (facts(topic(lag=900, seconds=90.0)), WORKING, "behind by 900 records, oldest missing record"),
    ],
)
def test_the_state_is_one_sentence(seen: Facts, tone: str, begin: str) -> None:
    found = headline(seen)
    assert (found.tone, found.text[: len(begin)]) == (tone, begin)


def test_a_mirror_that_is_paused_names_no_topic_of_its_own() -> None:
    pausing = [replace(topic(name, state="paused"), reason=f"{name} was paused at 2026-11-28T10:57:10Z by ann@box") for name in "tu"]
    assert headline(facts(*pausing)).text == "paused at 2026-11-28T10:57:10Z by ann@box"
    pausing[1] = replace(pausing[1], reason="u was paused at 2026-11-28T11:00:00Z by bob@box")
    assert headline(facts(*pausing)).text == "paused, topic by topic"


def test_what_is_old_says_so() -> None:
    assert headline(facts(topic(), error="east does not answer")).text == f"in step (as of {clock(NOW)}: east does not answer)"


def test_what_a_failover_would_lose_is_said_unless_nothing_is_copied() -> None:
    assert headline(facts(topic(lag=5))).loss == "failing over now would lose nothing"
    assert headline(facts(topic(lag=5, unread=1, seconds=3.0))).loss.startswith("failing over now would lose 1 record, back to 20")
    assert headline(facts(topic(lag=5, unread=2, seconds=3.0))).loss.startswith("failing over now would lose 2 records, back to")
    gone = topic("gone", state="halted", code="source_gone")
    assert headline(facts(topic(), gone)).loss == "what failing over now would lose of gone is not known"
    assert headline(facts(gone, topic(lag=5, unread=2, seconds=3.0))).loss.startswith("failing over now would lose at least 2 records")
    promoted = topic(state="promoted", unread=2, lag=2)
    assert headline(facts(promoted)).loss == ""
    assert headline(facts(promoted, topic("other"))).loss == "failing over now would lose nothing"


def test_with_a_history_it_says_since_when_and_how_long() -> None:
    history = History()
    for second, lag in ((0, 1000), (10, 900), (20, 800)):
        seen = facts(topic(lag=lag, seconds=60.0 + second), at=NOW + second)
        history.add(seen, NOW + second)
    text = headline(seen, history).text
    assert text.startswith(f"behind since {clock(NOW - 60)}, oldest missing record")
    assert text.endswith("4.2 MB/s, in step in about 1 m 20 s")
    history.add(facts(topic(lag=1100, seconds=200.0), at=NOW + 30), NOW + 30)
    assert headline(seen, history).text.endswith("not coming closer")
    history.add(facts(topic(), at=NOW + 40), NOW + 40)
    assert history.behind_since is None and len(history.points) == 5


def test_a_look_that_did_not_reach_the_source_and_topics_that_are_gone_leave_no_points() -> None:
    history = History()
    history.add(facts(topic(), topic("u")), NOW)
    history.add(facts(topic(), topic("u"), error="gone"), NOW + 10)
    assert len(history.points) == 1 and set(history.topics) == {"t", "u"}
    history.add(facts(topic(), at=NOW + 20), NOW + 20)
    assert set(history.topics) == {"t"}
