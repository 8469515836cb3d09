"""``offsets: exact`` on clusters with an authorizer: rights are asked for where they are needed, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import NewTopic

from mirror_pipeline import Mirror, load_config
from tests.integration.processes import wait_until
from tests.integration.secured import NAME, Secured, secured
from tests.support.exact import assert_same_offsets, begin_at, transactions
from tests.support.groups import IN_PROCESS
from tests.support.mirrors import log_starts, produce

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PLAIN, SOLD, LATE = "pay.plain", "pay.sold", "pay.late"
ON_TOPICS = ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS")
START = 150_000


def states(mirror: Mirror) -> dict[str, str]:
    return {row.topic: row.code or row.state for row in mirror.run(once=True).topics}


def exact_mirror(place: Secured) -> Mirror:
    for name in (PLAIN, SOLD, LATE):
        place.operator("east").create_topics([NewTopic(name, 1, 1)])[name].result(30)
    for alias, prefix in (("east", "pay."), ("west", "east.pay.")):
        place.allow(alias, "topic", prefix, *ON_TOPICS)
    body = yaml.safe_load(place.config.read_text())
    body["mirrors"][0]["offsets"] = "exact"
    place.config.write_text(yaml.safe_dump({**body, "engine": IN_PROCESS}))
    return Mirror(load_config(place.config), NAME)


def assert_same(place: Secured, mirror: Mirror, *topics: str) -> None:
    east, west = (place.clusters[alias].bootstrap_servers for alias in ("east", "west"))
    assert_same_offsets(mirror, list(topics), listeners=(east, west))


def test_rights_are_needed_where_there_are_holes(tmp_path: Path) -> None:
    with secured(tmp_path) as place:
        mirror, source = exact_mirror(place), place.clusters["east"].bootstrap_servers
        for name in (PLAIN, SOLD):
            produce(source, name, 10)
        begin_at(source, LATE, START)
        produce(source, LATE, 10)
        transactions(source, SOLD, 3)
        wait_until(lambda: states(mirror)[PLAIN] == "ok", 60, "the rights on topics to count")
        assert states(mirror) == {PLAIN: "ok", SOLD: "markers_refused", LATE: "markers_refused"}
        refused = {row.topic: row.hint for row in mirror.run(once=True).topics if row.code}
        assert all("--operation Alter --cluster" in hint for hint in refused.values()), refused
        assert_same(place, mirror, PLAIN)
        planned = {row.topic: (" ".join(row.warnings), " ".join(row.blockers)) for row in mirror.plan().topics}
        assert "no hole was seen, which needs no right" in planned[PLAIN][0]
        assert "looked at have no record" in planned[SOLD][0] and "Alter --cluster" in planned[SOLD][1]
        assert not planned[PLAIN][1], planned
        said = {each.what: (each.ok, each.detail) for each in mirror.check()}
        assert said[f"topic {PLAIN}"][0] and not said[f"topic {SOLD}"][0], said

        place.allow("west", "topic", f"east.{LATE}", "DELETE", kind="LITERAL")
        place.allow("west", "broker", "kafka-cluster", "ALTER", kind="LITERAL")
        wait_until(lambda: set(states(mirror).values()) == {"ok"}, 60, "the rights to count")
        assert_same(place, mirror, PLAIN, SOLD, LATE)


def test_with_the_right_to_delete_records_a_late_start_needs_no_other(tmp_path: Path) -> None:
    with secured(tmp_path) as place:
        mirror, source = exact_mirror(place), place.clusters["east"].bootstrap_servers
        begin_at(source, LATE, START)
        produce(source, LATE, 10)
        place.allow("west", "topic", f"east.{LATE}", "DELETE", kind="LITERAL")
        padded = f"{START:,} offsets below its start are padded: that needs DELETE on the target topic"
        wait_until(lambda: any(padded in " ".join(row.warnings) for row in mirror.plan().topics), 60, "the plan to name them")
        wait_until(lambda: states(mirror)[LATE] == "ok", 60, "the rights to count")
        assert_same(place, mirror, LATE)
        assert log_starts(mirror, f"east.{LATE}", target=True) == {0: START}
