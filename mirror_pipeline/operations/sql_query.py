"""What ``mirror sql`` may run: one query over the mirror's own tables and views, judged by its plan before anything is executed.

A query may come from a runbook, a ticket or a pipe. Spark's SQL also runs commands and programs, reads any file, and calls any static
Java method; whatever is not known here to only read the mirror's tables is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from mirror_pipeline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Nodes of a parsed query, by Spark's class names.
NODES = frozenset({
    "Aggregate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect", "Join", "LateralJoin", "LocalLimit",
    "LocalRelation", "Offset", "OneRowRelation", "PipeOperator", "Pivot", "Project", "ResolvedInlineTable", "Sample", "Sort",
    "SubqueryAlias", "Union", "Unpivot", "UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedRelation",
    "UnresolvedSubqueryColumnAliases", "UnresolvedWith", "Window", "WithWindowDefinition",
})  # fmt: skip
# What a plan may read once its names are known.
PLAN_LEAVES = frozenset({"CTERelationRef", "LocalRelation", "OneRowRelation", "View"})
# Expressions that reach beyond the rows: `reflect` and its kin, and schemas that are read from files.
OUTSIDE = ("CallMethodViaReflection", "Protobuf", "PythonUDF", "ScalaUDF")


def refuse_unsafe(spark: SparkSession, query: str, known: Collection[str]) -> None:
    """Raise UsageError unless the text is one query over tables of these names; executes nothing."""
    if "${" in query:
        raise UsageError("${...}: Spark would replace it, also by what is in the environment", hint="write the value itself")
    plans = list(_plans(spark._jsparkSession.sessionState().sqlParser().parsePlan(query)))
    names = {*known}
    for plan in plans:
        kind = _kind(plan)
        if kind not in NODES:
            raise UsageError(f"{kind}: not a query that only reads the mirror's tables", hint=hint(known))
        if kind == "UnresolvedWith":
            names |= {_text(alias) for alias in _each(plan.innerChildren())}
    for plan in plans:
        parts = list(_each(plan.multipartIdentifier())) if _kind(plan) == "UnresolvedRelation" else []
        if parts and (len(parts) > 1 or str(parts[0]).lower() not in names):
            raise UsageError(f"{'.'.join(map(str, parts))}: no table of this mirror", hint=hint(known))


def refuse_outside(frame: DataFrame, known: Collection[str]) -> None:
    """Raise UsageError where an analysed query reads anything but the mirror's tables, or leaves SQL; executes nothing."""
    for plan in _plans(frame._jdf.queryExecution().analyzed(), into_views=False):
        if not _count(plan.children()) and _kind(plan) not in PLAN_LEAVES:
            raise UsageError(f"{_kind(plan)}: no table of this mirror", hint=hint(known))
        for expression in _expressions(plan.expressions()):
            kind = _kind(expression)
            if any(word in kind for word in OUTSIDE):
                raise UsageError(f"{expression.prettyName()}: a function that reaches beyond the mirror's tables", hint=hint(known))


def hint(known: Collection[str]) -> str:
    """What a query may name."""
    return f"tables: {', '.join(known)}; a query with LIMIT 0 shows the columns of one"


def _plans(plan: Any, *, into_views: bool = True) -> Iterator[Any]:
    """A plan and all plans inside it: children, subqueries, named queries."""
    yield plan
    if into_views or _kind(plan) != "View":
        for inner in (*_each(plan.children()), *_each(plan.innerChildren())):
            yield from _plans(inner, into_views=into_views)


def _expressions(found: Any) -> Iterator[Any]:
    for expression in _each(found):
        yield expression
        yield from _expressions(expression.children())


def _each(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    elements = sequence.iterator()
    while elements.hasNext():
        yield elements.next()


def _count(sequence: Any) -> int:
    size: int = sequence.size()
    return size


def _kind(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name.removesuffix("$")


def _text(alias: Any) -> str:
    name: str = alias.alias()
    return name.lower()
