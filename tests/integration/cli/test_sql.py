"""``mirror sql`` on a buffer that a run has written: the tables of all lanes, and the named views."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline.cli.main import main
from mirror_pipeline.errors import UsageError
from mirror_pipeline.mirror import Mirror
from mirror_pipeline.operations.sql import QUERY_TABLES, VIEWS
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


@pytest.mark.long
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


@pytest.mark.long
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
    assert all(name in said for name in [*(spec.name for spec in QUERY_TABLES), *VIEWS])


REFUSED = [
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM delta.`{sends}`",
    "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
    "SELECT * FROM sends WHERE EXISTS (SELECT 1 FROM text.`/etc/passwd`)",
    "WITH sends AS (SELECT * FROM csv.`/etc/passwd`) SELECT * FROM sends",
    "SELECT TRANSFORM(topic) USING 'touch {tmp}/pwn; cat' AS (x STRING) FROM sends",
    "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT (SELECT max(java_method('java.lang.System', 'getenv', 'HOME')) FROM sends)",
    "SELECT sum(records) OVER w FROM sends WINDOW w AS (PARTITION BY try_reflect('java.lang.System', 'getenv', 'HOME'))",
    "SELECT * FROM table_changes('delta.`{sends}`', 0)",
    "SELECT * FROM range(3)",
    "INSERT OVERWRITE DIRECTORY '{tmp}/out' USING json SELECT * FROM sends",
    "CREATE TABLE t1 AS SELECT 1",
    "CREATE TEMPORARY VIEW sends AS SELECT 1",
    "DROP TABLE sends",
    "DROP VIEW sends",
    "DELETE FROM delta.`{sends}`",
    "INSERT INTO sends SELECT * FROM sends",
    "EXECUTE IMMEDIATE 'DROP VIEW sends'",
    "BEGIN SELECT 1; DROP VIEW sends; END",
    "SET spark.sql.variable.substitute=true",
    "SHOW TABLES",
    "SELECT 1; SELECT 2",
    "SELECT '${env:HOME}'",
]


def test_one_query_over_the_mirrors_tables_and_nothing_else(
    copied: Mirror, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (store, *_) = copied.flow.lane_stores()
    before = sorted(tmp_path.iterdir())
    for query in REFUSED:
        text = query.replace("{sends}", store.table("sends")).replace("{tmp}", str(tmp_path))
        assert main(["sql", text, "-c", "mirror.yaml"]) == 2, query
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("error: ") == 1 and "Traceback" not in said, query
    assert sorted(tmp_path.iterdir()) == before
    assert rows(copied, "SELECT sum(records) AS records FROM sends", spark) == [{"records": 600}]


ANSWERED = [
    ("WITH a AS (SELECT topic, records FROM Sends), b AS (SELECT * FROM a) SELECT sum(records) AS n FROM b", 600),
    ("SELECT count(*) AS n FROM (SELECT DISTINCT topic FROM sends UNION SELECT topic FROM spans EXCEPT SELECT 'x')", 2),
    ("SELECT max(n) AS n FROM (SELECT topic, sum(records) OVER w AS n FROM positions WINDOW w AS (PARTITION BY topic))", 300),
    ("SELECT count(*) > 0 AS n FROM spans s JOIN sends t USING (topic, partition) WHERE s.topic IN (SELECT topic FROM copied)", True),
    ("SELECT count(*) AS n FROM incarnations LATERAL VIEW explode(starts) e AS number, first", 6),
    ("SELECT n > 0 AS n FROM (SELECT partition, count(*) AS n FROM sends GROUP BY ALL HAVING n > 0 ORDER BY partition) LIMIT 1", True),
    ("FROM sends |> AGGREGATE sum(records) AS n", 600),
    ("SELECT max(x) AS n FROM VALUES (1), (2) AS t(x)", 2),
]
WRONG = ["SELECT raise_error('no') FROM sends", "SELECT records / 0 FROM sends", "SELECT CAST(topic AS INT) FROM sends"]


@pytest.mark.long
def test_whatever_only_reads_them_is_answered_and_errors_while_it_runs_are_the_querys(
    copied: Mirror, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for query, found in ANSWERED:
        assert rows(copied, query, spark) == [{"n": found}], query
    for query in WRONG:
        assert main(["sql", query, "-c", str(tmp_path / "mirror.yaml")]) == 2, query
        said = capsys.readouterr().err
        assert said.startswith("error: ") and "Traceback" not in said and "internal" not in said


@pytest.mark.long
def test_nothing_is_left_in_the_current_folder(copied: Mirror, tmp_path: Path) -> None:
    """A session of its own, as on the command line."""
    here = tmp_path / "here"
    here.mkdir()
    line = [sys.executable, "-m", "mirror_pipeline.cli", "sql", "SELECT * FROM positions", "-c", str(tmp_path / "mirror.yaml")]
    subprocess.run(line, cwd=here, check=True, capture_output=True, timeout=180, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert list(here.iterdir()) == []


def test_before_the_first_run_there_is_nothing_to_ask(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    source, target = (cluster.bootstrap_servers for cluster in clusters)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    with pytest.raises(UsageError, match="has copied nothing yet"):
        mirror.sql("SELECT 1")


def test_a_process_whose_spark_runs_without_delta_says_so() -> None:
    code = (
        "from mirror_pipeline.config import EngineConfig as E; from mirror_pipeline.execution.spark import build_context, build_session\n"
        "build_context(E(spark_master='local[2]')); build_session(E(spark_master='local[2]'), with_delta=True)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "UsageError: this process started its Spark without Delta" in ended.stderr
