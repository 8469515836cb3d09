"""``mirror sql``: questions to a mirror's buffer and ledger, answered by Spark with Delta."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables.schema import (
    ARCHIVE,
    DECISIONS,
    GAPS,
    INCARNATIONS,
    PRODUCERS,
    QUARANTINE,
    SENDS,
    SPANS,
    VERIFICATIONS,
    TableSpec,
)
from mirror_pipeline.errors import MirrorError, UsageError
from mirror_pipeline.execution.spark import build_session
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.operations.sql_query import hint, refuse_outside, refuse_unsafe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY_TABLES = (SPANS, ARCHIVE, SENDS, GAPS, INCARNATIONS, PRODUCERS, VERIFICATIONS, DECISIONS, QUARANTINE)
VIEWS = {
    "copied": """
SELECT date_trunc('MINUTE', recorded_at) AS minute, topic, target_topic, sum(records) AS records,
       count(DISTINCT micro_batch) AS micro_batches
FROM sends WHERE records > 0 GROUP BY ALL""",
    "offset_map": """
SELECT topic, partition, incarnation, source_start, source_end, target_topic, target_start, target_end, records, cause, recorded_at
FROM sends""",
    "positions": """
WITH generations AS (
  SELECT *, row_number() OVER (PARTITION BY lane, topic ORDER BY revision DESC) AS age FROM incarnations
), present AS (
  SELECT topic, incarnation, target_topic, target_starts, explode(starts) AS (partition, first) FROM generations WHERE age = 1
)
SELECT present.topic, present.partition, present.target_topic,
       coalesce(max(source_end), first) AS next_source_offset,
       greatest(max(target_end), element_at(target_starts, present.partition)) AS next_target_offset,
       coalesce(sum(records), 0) AS records,
       max(recorded_at) AS last_recorded_at
FROM present LEFT JOIN sends USING (topic, partition, incarnation)
GROUP BY present.topic, present.partition, present.target_topic, first, target_starts""",
    "holes": """
SELECT topic, cause, sum(source_end - source_start) AS offsets FROM sends WHERE cause IS NOT NULL GROUP BY ALL""",
    "buffered": """
WITH reached AS (
  SELECT topic, partition, incarnation, max(source_end) AS position FROM sends GROUP BY ALL
)
SELECT spans.topic, count(*) AS spans, sum(spans.records) AS records, sum(bytes) AS bytes,
       coalesce(sum(bytes) FILTER (WHERE position IS NULL OR end_offset > position), 0) AS waiting_bytes,
       min(staged_at) AS oldest
FROM spans LEFT JOIN reached USING (topic, partition, incarnation)
GROUP BY spans.topic""",
    "lag_history": """
SELECT date_trunc('MINUTE', sends.recorded_at) AS minute, topic, sum(spans.records) AS records,
       max(timestampdiff(MILLISECOND, timestamp_millis(spans.min_timestamp), sends.recorded_at)) / 1000 AS lag_seconds
FROM spans JOIN sends USING (topic, partition, incarnation)
WHERE sends.records > 0 AND spans.records > 0 AND spans.min_timestamp > 0
  AND sends.source_start < spans.end_offset AND sends.source_end >= spans.end_offset
GROUP BY ALL""",
}
"""Named answers to the questions of docs/buffer.md, as views over the tables of all lanes."""
KNOWN = (*(spec.name for spec in QUERY_TABLES), *VIEWS)
# Classes of SQLSTATE that are about the query: cardinality, data, syntax, what is not supported, and what it raises itself.
QUERY_STATES = ("21", "22", "42", "0A", "P0")


def open_sql(flow: Flow, session: Session = None) -> SparkSession:
    """A Spark session that knows the mirror's tables and :data:`VIEWS` as temporary views; the rows of all lanes together.

    Args:
        flow: the mirror.
        session: a session with Delta to use; one is started if none is given.

    Raises:
        UsageError: the mirror has no lane yet, its buffer is an object store, or there is no Java.
        BufferUnusable: the buffer cannot be read.
        MirrorError: Spark does not start, or the Delta jars cannot be fetched.
    """
    stores = flow.lane_stores()
    if not stores:
        raise UsageError(f"mirror {flow.name} has copied nothing yet", hint="mirror run first: its tables are created by the first run")
    remote = next((store for store in stores if not store.local), None)
    if remote is not None:
        raise UsageError(f"{remote.uri} is an object store, which `mirror sql` does not read", hint="ask it by Spark with s3a")
    spark = (session() if callable(session) else session) or build_session(
        flow.settings.engine, app_name=f"mirror sql {flow.name}", with_delta=True
    )
    for spec in QUERY_TABLES:
        _rows(spark, spec, stores).createOrReplaceTempView(spec.name)
    for name, text in VIEWS.items():
        spark.sql(text).createOrReplaceTempView(name)
    return spark


def ask(flow: Flow, query: str, session: Session = None) -> DataFrame:
    """The answer to one query, which is not executed yet; commands, other tables, files and programs are refused.

    Raises:
        UsageError: the query is wrong; the message is Spark's. Also what :func:`open_sql` raises.
        MirrorError: Spark fails.
    """
    spark = open_sql(flow, session)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # pyspark writes each wrong query to standard error, as JSON
    with _explained():
        refuse_unsafe(spark, query, KNOWN)
        frame = spark.sql(query)
        refuse_outside(frame, KNOWN)
    return frame


def rows_of(frame: DataFrame, limit: int) -> list[dict[str, Any]]:
    """At most this many rows of an answer. Raises as :func:`ask`."""
    with _explained():
        return [row.asDict(recursive=True) for row in frame.limit(limit).collect()]


@contextmanager
def _explained() -> Iterator[None]:
    """Tell a query's own errors, by their SQLSTATE, from those of Spark."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if str(error.getSqlState() or "").startswith(QUERY_STATES):
            raise UsageError(_first_line(error), hint=hint(KNOWN)) from error
        raise MirrorError(f"Spark cannot answer: {_first_line(error)}") from error
    except Py4JJavaError as error:
        raise MirrorError(f"Spark cannot answer: {_first_line(error)}") from error


def _rows(spark: SparkSession, spec: TableSpec, stores: list[LaneStore]) -> DataFrame:
    """The rows of all lanes; a table that no lane has written yet is empty."""
    from pyspark.sql.pandas.types import from_arrow_schema

    there = [store.table(spec.name) for store in stores if Path(store.table(spec.name), "_delta_log").is_dir()]
    rows = spark.createDataFrame([], from_arrow_schema(spec.schema))
    for path in there:
        rows = rows.unionByName(spark.read.format("delta").load(path), allowMissingColumns=True)
    return rows


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
