"""``mirror sql`` on a buffer that a run has written: the tables of all lanes, and the named views."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline.cli.main import main
from mirror_pipeline.errors import UsageError
from mirror_pipeline.mirror import Mirror
from mirror_pipeline.operations.sql import TABLES, VIEWS
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce


@pytest.fixture
def copied(clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]) -> Mirror:
    """Two topics in two lanes, 300 records each, all on the target."""
    source, target = (cluster.bootstrap_servers for cluster in clusters)
    topics = [new_topic_name(), new_topic_name()]
    for topic in topics:
        create_topic(source, topic, 3)
        produce(source, topic, 300, partitions=3)
    mirror = make_mirror(tmp_path, source, target, topics, lanes=2)
    mirror.run(once=True)
    return mirror


def rows(mirror: Mirror, query: str, spark: SparkSession) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in mirror.sql(query, session=spark).collect()]


def test_the_views_answer_about_all_lanes(copied: Mirror, spark: SparkSession) -> None:
    places = rows(copied, "SELECT * FROM positions ORDER BY topic, partition", spark)
    assert [(row["partition"], row["next_source_offset"], row["next_target_offset"], row["records"]) for row in places] == [
        (number, 100, 100, 100) for _ in range(2) for number in range(3)
    ]
    sums = "SELECT count(DISTINCT topic) AS topics, sum(records) AS records FROM "
    for view in ("copied", "offset_map", "lag_history", "buffered"):
        assert rows(copied, sums + view, spark) == [{"topics": 2, "records": 600}], view
    assert all(0 <= row["lag_seconds"] < 3600 for row in rows(copied, "SELECT lag_seconds FROM lag_history", spark))
    assert rows(copied, "SELECT * FROM holes", spark) == rows(copied, "SELECT * FROM gaps", spark) == []
    assert rows(copied, "SELECT count(*) AS n FROM quarantine", spark) == [{"n": 0}]  # a table that no lane has written


def test_the_command_prints_tables_and_json(
    copied: Mirror, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["-c", str(tmp_path / "mirror.yaml")]
    query = "SELECT topic, partition, records FROM positions ORDER BY topic, partition"
    assert main(["sql", query, "--json", *config]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["columns"], len(answer["rows"]), answer["more"]) == (["topic", "partition", "records"], 6, False)
    assert main(["sql", query, "--limit", "2", "--json", *config]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (len(answer["rows"]), answer["more"]) == (2, True)
    assert main(["sql", "SELECT sum(records) AS records, max(length(payload)) > 0 AS bytes FROM spans", *config]) == 0
    printed = capsys.readouterr().out
    assert "records" in printed and "600" in printed and "True" in printed


@pytest.mark.parametrize("query", ["SELECT nothing FROM spans", "SELEC 1", "SELECT * FROM orders"])
def test_a_wrong_query_is_one_line_with_the_tables(
    copied: Mirror, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    assert main(["sql", query, "-c", str(tmp_path / "mirror.yaml")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "Traceback" not in said
    assert all(name in said for name in [*(spec.name for spec in TABLES), *VIEWS])


def test_before_the_first_run_there_is_nothing_to_ask(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    source, target = (cluster.bootstrap_servers for cluster in clusters)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    with pytest.raises(UsageError, match="has copied nothing yet"):
        mirror.sql("SELECT 1")
