"""Which topics a mirror copies, and why not the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from mirror_pipeline.config import nearest
from mirror_pipeline.config.naming import NamingRule, template_of
from mirror_pipeline.reports import Excluded


def select(
    names: Iterable[str],
    include: Sequence[str],
    exclude: Sequence[str],
    *,
    naming: NamingRule = "identity",
    source: str = "",
    target: str = "",
    aliases: Collection[str] = (),
) -> tuple[list[str], list[Excluded]]:
    """Split topic names into those to mirror and those left out, each with its reason.

    Args:
        names: the source's topics.
        include: regexes, of which one must match the whole name.
        exclude: regexes that win over ``include``.
        naming: with ``prefix`` (or a template that begins with ``{source}.``) names that came from ``target`` are left out.
        source: alias of the source cluster.
        target: alias of the target cluster.
        aliases: all cluster aliases, to see through several hops (``c.west.orders``).
    """
    includes, excludes = [re.compile(p) for p in include], [re.compile(p) for p in exclude]
    selected: list[str] = []
    excluded: list[Excluded] = []
    for name in sorted(set(names)):
        why = _why_not(name, includes, excludes)
        if not why and target and template_of(naming, name).startswith("{source}.") and came_from(name, target, {source, *aliases}):
            why = f'by its name it was copied from cluster {target} ("{target}."): copying it back would loop; naming: identity copies it'
        if why:
            excluded.append(Excluded(name, why))
        else:
            selected.append(name)
    return selected, excluded


def _why_not(name: str, includes: Sequence[re.Pattern[str]], excludes: Sequence[re.Pattern[str]]) -> str:
    if name.startswith("__"):
        return "internal topic of Kafka"
    if not any(pattern.fullmatch(name) for pattern in includes):
        return "matches no include regex"
    hit = next((pattern.pattern for pattern in excludes if pattern.fullmatch(name)), None)
    return "" if hit is None else f'matches exclude "{hit}"'


def came_from(topic: str, alias: str, aliases: Collection[str]) -> bool:
    """Whether the cluster prefixes of a name hold ``alias``: ``west.orders``, or ``c.west.orders`` when c is an alias too."""
    prefix, dot, rest = topic.partition(".")
    while dot and rest:
        if prefix == alias:
            return True
        if prefix not in aliases:
            return False
        prefix, dot, rest = rest.partition(".")
    return False


def unmatched(names: Collection[str], include: Sequence[str]) -> list[str]:
    """One line for each include regex that matches no topic, with the nearest name."""
    if not any(not name.startswith("__") for name in names):
        return ["the source has no topics yet, or shows none to this user"]
    lines = []
    for pattern in include:
        compiled = re.compile(pattern)
        if not any(compiled.fullmatch(name) for name in names):
            near = nearest(pattern, [name for name in names if not name.startswith("__")])
            part = next((name for name in sorted(names) if compiled.search(name) and not name.startswith("__")), None)
            whole = f'it matches only part of "{part}"; a regex must match the whole name'
            hint = _doubled(pattern, names) or (whole if part else near if near.startswith("did") else "")
            lines.append(f'include "{pattern}" matches no topic' + (f": {hint}" if hint else ""))
    return lines


def _doubled(pattern: str, names: Collection[str]) -> str:
    """What to write instead of a regex whose backslashes were doubled in single quotes; "" if that is not the cause."""
    single = pattern.replace("\\\\", "\\")
    try:
        hit = single != pattern and any(re.fullmatch(single, name) for name in names)
    except re.error:
        return ""
    return f"backslashes are doubled in double quotes only, '{single}' in single quotes matches" if hit else ""
