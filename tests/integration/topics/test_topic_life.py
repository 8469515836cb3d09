"""Where topics begin, what becomes of a topic that was deleted on the source, and partitions that the target has more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.cli.main import main
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.model import Decision, DecisionKind
from tests.integration.processes import wait_until
from tests.support.deleted_topics import delete_topic, expected
from tests.support.groups import running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import add_partitions, assert_identical, create_topic, end_offsets, make_mirror, nowhere, produce, values
from tests.support.reverse_pair import IN_PROCESS, pair

pytestmark = pytest.mark.long


def exists(admin: Admin, topic: str) -> bool:
    return topic in admin.topics([topic])


# start by topic


def test_each_topic_begins_where_start_says(clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    offsets, latest, moment, rest, later = (new_topic_name() for _ in range(5))
    for topic in (offsets, latest, moment, rest):
        create_topic(east, topic, 2 if topic == offsets else 1, retention__ms="-1")
        produce(east, topic, 20, partitions=2 if topic == offsets else 1, at=1_000_000)
    produce(east, moment, 5, start=20, at=2_000_000)
    begin = datetime.fromtimestamp(1500, UTC).isoformat()
    start = {offsets: {"0": 7}, latest: "latest", f"{moment}|{later}": begin, "otherwise": "earliest"}
    mirror = make_mirror(tmp_path, east, west, [f"{offsets}|{latest}|{moment}|{rest}|{later}"], start=start, engine=IN_PROCESS)
    lag = {row.topic: row.lag_records for row in mirror.lag().topics}
    assert lag == {offsets: 3 + 10, latest: 0, moment: 5, rest: 20}
    assert {row.topic: row.records for row in mirror.plan().topics} == lag
    assert mirror.run(once=True).records == sum(lag.values())
    assert values(mirror, f"east.{offsets}", 0) == [text for text in expected(0, 20)[::2]][7:]
    assert values(mirror, f"east.{offsets}", 1) == expected(0, 20)[1::2], "a partition that is not named begins at its log's start"
    assert values(mirror, f"east.{moment}") == expected(20, 25) and values(mirror, f"east.{latest}") == []
    create_topic(east, later, retention__ms="-1")
    produce(east, later, 9, at=1_000_000)
    produce(east, latest, 3, start=20)
    mirror.run(once=True)
    assert values(mirror, f"east.{later}") == expected(0, 9), "a topic that appears later is copied from its beginning"
    assert values(mirror, f"east.{latest}") == expected(20, 23)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [({"0": 21}, "offset 21 of {topic}[0], whose log begins at 0 and ends at 20"), ({"3": 0}, "partition 3 of {topic}, which has 1")],
)
def test_an_offset_outside_the_log_is_refused_before_anything_is_created(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str], offsets: dict[str, int], said: str
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    topic, other = new_topic_name(), new_topic_name()
    for name in (topic, other):
        create_topic(east, name)
        produce(east, name, 20)
    mirror = make_mirror(tmp_path, east, west, [topic, other], start={topic: offsets}, engine=IN_PROCESS)
    reason = f"`start` names {said.format(topic=topic)}: correct it in mirror.yaml"
    assert {row.topic: row.blockers for row in mirror.plan().topics} == {topic: (reason,), other: ()}
    assert [finding.detail for finding in mirror.check() if not finding.ok] == [reason]
    report = mirror.run(once=True)
    assert {row.topic: (row.state, row.reason) for row in report.topics} == {topic: ("halted", reason), other: ("ok", "")}
    with mirror.flow.target_admin() as target:
        assert not exists(target, f"east.{topic}")
    right = make_mirror(tmp_path, east, west, [topic, other], start={topic: {"0": 20}}, engine=IN_PROCESS)
    produce(east, topic, 5, start=20)
    assert right.run(once=True).state == "ok"
    assert values(right, f"east.{topic}") == expected(20, 25)


def test_a13_start_latest_copies_only_what_comes(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """MirrorMaker 2's case A13. It needs a sentinel topic to know that polling has begun; here the lag says so."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 10)
    produce(east, topic_name, 100, partitions=10)
    mirror = make_mirror(tmp_path, east, west, [topic_name], start="latest", engine=IN_PROCESS)
    with running(mirror):
        wait_until(lambda: [row.state for lane in mirror.status().lanes for row in lane.topics] == ["ok"], 60, "the copy to begin")
        produce(east, topic_name, 100, partitions=10, start=100)
        wait_until(lambda: sum(end_offsets(mirror, f"east.{topic_name}", target=True).values()) >= 100, 60, "the records")
    assert end_offsets(mirror, f"east.{topic_name}", target=True) == dict.fromkeys(range(10), 10)


# deleted on the source


@pytest.mark.parametrize("continuous", [False, True])
def test_the_copy_of_a_deleted_topic_is_kept_without_an_alarm(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str], continuous: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, other = new_topic_name(), new_topic_name()
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    for name in (topic, other):
        create_topic(east, name)
        produce(east, name, 100)
    topics = {"include": [topic, other], "on_source_delete": "keep"}
    mirror = make_mirror(tmp_path, east, west, [topic, other], topics=topics, engine=IN_PROCESS)
    assert mirror.run(once=True).state == "ok"
    produce(east, topic, 50, start=100)
    here, mirror.flow.target = mirror.flow.target, nowhere(mirror.flow.target)
    with pytest.raises(ClusterUnreachable):
        mirror.run(once=True)  # 50 records are in the buffer
    delete_topic(mirror, topic)
    mirror.flow.target = here
    produce(east, other, 10, start=100)
    report = mirror.run(seconds=8) if continuous else mirror.run(once=True)
    assert report.state == "ok"
    ended = (topic, "ended", "ended", 50)
    assert {(row.topic, row.state, row.code, row.records) for row in report.topics} == {ended, (other, "ok", "", 10)}
    assert values(mirror, f"east.{topic}") == expected(0, 150)
    assert {row.topic: (row.state, row.lag_records) for row in mirror.lag().topics} == {topic: ("ended", 0), other: ("ok", 0)}
    assert {row.topic: (row.state, row.blockers) for row in mirror.plan().topics} == {topic: ("ended", ()), other: ("ok", ())}
    assert {row.topic: row.state for lane in mirror.status().lanes for row in lane.topics} == {topic: "ended", other: "ok"}
    assert [finding for finding in mirror.check() if not finding.ok] == [] and mirror.gaps() == []
    config = ["-c", str(tmp_path / "mirror.yaml")]
    for words in (["health"], ["status", "--exit-code"], ["lag"], ["plan"], ["check"]):
        assert main([*config, *words]) == 0, words
    create_topic(east, topic)
    produce(east, topic, 5)
    assert {row.topic: row.code for row in mirror.run(once=True).topics} == {topic: "recreated", other: ""}


def test_what_was_deleted_before_it_was_read_is_recorded_as_a_gap(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    produce(east, topic_name, 20_000, size=1000)
    topics = {"include": [topic_name, "other.*"], "on_source_delete": "keep"}
    slow = {**IN_PROCESS, "bandwidth": "1MB", "micro_batch_bytes": "1MB"}
    mirror = make_mirror(tmp_path, east, west, [topic_name], topics=topics, engine=slow)
    with running(mirror):
        wait_until(lambda: mirror.lag().lag_records < 20_000, 60, "the first records")
    assert mirror.lag().lag_records > 0
    delete_topic(mirror, topic_name)
    report = mirror.run(once=True)
    assert [(row.topic, row.state) for row in report.topics] == [(topic_name, "ended")]
    ((gap),) = mirror.gaps()
    end = end_offsets(mirror, f"east.{topic_name}", target=True)[0]
    assert (gap.topic, gap.partition, gap.start, gap.end) == (topic_name, 0, end, 20_000)
    assert gap.decided_by == "topics.on_source_delete: keep"
    mirror.run(once=True)
    assert mirror.gaps() == [gap], "once"


def test_topics_of_another_cluster_have_not_ended(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """The clusters are confused; there is no such topic where the source is now."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    produce(east, topic_name, 10)
    topics = {"include": [topic_name], "on_source_delete": "keep"}
    assert make_mirror(tmp_path, east, west, [topic_name], topics=topics, engine=IN_PROCESS).run(once=True).records == 10
    astray = make_mirror(tmp_path, west, east, [topic_name], topics=topics, engine=IN_PROCESS)
    assert [(row.state, row.code) for row in astray.run(once=True).topics] == [("halted", "other_cluster")]
    assert [(row.state, row.code) for row in astray.lag().topics] == [("halted", "other_cluster")]
    assert astray.gaps() == []


# partitions


def test_more_partitions_on_the_target_are_a_warning(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 2)
    create_topic(west, f"east.{topic_name}", 3)
    produce(east, topic_name, 10, partitions=2)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS)
    (row,) = mirror.plan().topics
    assert row.blockers == () and any("has 3 partitions" in warning for warning in row.warnings)
    assert mirror.run(once=True).records == 10
    assert_identical(mirror, [topic_name])


def test_more_partitions_on_the_target_block_a_pair_that_can_fail_over(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 2)
    create_topic(west, f"east.{topic_name}", 3)
    produce(east, topic_name, 10, partitions=2)
    mirror, _ = pair(tmp_path, clusters, topic_name)
    reason = (
        f"topic east.{topic_name} on west has 3 partitions, its source {topic_name} has 2, and mirror back is the reverse of m: after a"
        f" failover the keys of new records would go to other partitions: add partitions to {topic_name}, or name another target topic"
    )
    assert [row.blockers for row in mirror.plan().topics] == [(reason,)]
    assert [finding.detail for finding in mirror.check() if not finding.ok] == [reason]
    assert [(row.state, row.reason) for row in mirror.run(once=True).topics] == [("halted", reason)]
    add_partitions(east, topic_name, 3)
    produce(east, topic_name, 6, partitions=3, start=10)
    assert mirror.run(once=True).records == 16
    assert_identical(mirror, [topic_name])


# recreated on the source


def test_a_topic_recreated_under_a_running_lane_has_one_diagnosis_everywhere(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new log ends before the position: by its offsets alone it looks truncated."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS)
    create_topic(east, topic_name)
    produce(east, topic_name, 200)
    with running(mirror):
        wait_until(lambda: end_offsets(mirror, f"east.{topic_name}", target=True) == {0: 200}, 60, "the copy")
        delete_topic(mirror, topic_name)
        create_topic(east, topic_name)
        produce(east, topic_name, 50, start=1000)
        wait_until(lambda: _reported(mirror, topic_name)[1] not in ("", "source_gone"), 60, "a diagnosis")
    assert _reported(mirror, topic_name) == ("halted", "recreated")
    (lag,), (plan,), (halt,) = mirror.lag().topics, mirror.plan().topics, mirror.halts()
    assert (lag.code, plan.code, halt.code) == ("recreated",) * 3
    assert halt.accept and halt.accept in lag.hint and halt.accept in plan.hint
    config = ["-c", str(tmp_path / "mirror.yaml")]
    assert main(["resolve", *config, "--topic", topic_name, "--accept", "truncated"]) == 2
    assert "halted for recreated" in capsys.readouterr().err
    assert main([*halt.accept.split()[1:], *config]) == 0
    assert mirror.run(once=True).state == "ok"
    assert values(mirror, f"east.{topic_name}") == [*expected(0, 200), *expected(1000, 1050)]


def test_accepting_a_truncation_never_joins_two_topics(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """The topic is recreated after the decision and before it is acted on."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS)
    create_topic(east, topic_name)
    produce(east, topic_name, 30)
    assert mirror.run(once=True).state == "ok"
    (store,) = mirror.flow.lane_stores()
    life = Ledger(store).incarnations()[topic_name]
    Decisions(store).add([Decision(topic_name, 0, life.incarnation, DecisionKind.TRUNCATED, 20, 30, "", "me", 1)])
    delete_topic(mirror, topic_name)
    create_topic(east, topic_name)
    produce(east, topic_name, 50, start=1000)
    (row,) = mirror.run(once=True).topics
    assert (row.state, row.code) == ("halted", "recreated")
    assert values(mirror, f"east.{topic_name}") == expected(0, 30) and mirror.gaps() == []
    assert mirror.resolve(topic_name, "recreated").accepted == "recreated"


def test_what_lag_prints_of_a_recreated_topic_is_accepted_before_any_run_stops(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS)
    create_topic(east, topic_name)
    produce(east, topic_name, 30)
    assert mirror.run(once=True).state == "ok"
    delete_topic(mirror, topic_name)
    create_topic(east, topic_name)
    produce(east, topic_name, 5, start=1000)
    (halt,) = mirror.halts()
    assert halt.accept and halt.accept in mirror.lag().topics[0].hint
    assert mirror.resolve(topic_name, halt.code).accepted == "recreated"
    assert (mirror.halts(), mirror.lag().halted) == ([], ())
    assert mirror.run(once=True).state == "ok"
    assert values(mirror, f"east.{topic_name}") == [*expected(0, 30), *expected(1000, 1005)]


def _reported(mirror: Mirror, topic: str) -> tuple[str, str]:
    """State and code of a topic, as its lane reports them."""
    return next(((t.state, t.code) for lane in mirror.status().lanes for t in lane.topics if t.topic == topic), ("", ""))
