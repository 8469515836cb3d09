"""Names on the target: built, checked, and kept from colliding or looping."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mirror_pipeline.config import MirrorConfig
from mirror_pipeline.config.naming import OTHERWISE, NamingRule, fill, same_to_kafka, shows_source, sources, topic_name_problem
from mirror_pipeline.errors import UsageError
from mirror_pipeline.reports import Excluded
from mirror_pipeline.topics.select import select

ONLY = "topics.originals_only leaves out copies"


@dataclass(frozen=True, slots=True)
class Claim:
    """A mirror that wants to write a target topic."""

    mirror: str
    topic: str
    target: str
    target_topic: str


def target_name(naming: NamingRule, source_alias: str, topic: str) -> str:
    """The name of a source topic on the target.

    Args:
        naming: the mirror's.
        source_alias: alias of the source cluster.
        topic: name on the source.

    Raises:
        UsageError: Kafka would refuse the name, e.g. because it is longer than 249 characters.
    """
    name = fill(naming, source_alias, topic)
    problem = topic_name_problem(name) or ("is the name of an internal topic" if name.startswith("__") else "")
    if problem:
        raise UsageError(
            f'topic {topic} would be named "{name}" on the target, which {problem}',
            hint="choose another naming, or exclude the topic",
        )
    return name


def target_names(naming: NamingRule, source: str, target: str, topics: Iterable[str]) -> dict[str, str]:
    """Source to target name of each topic.

    Raises:
        UsageError: a name is illegal, or two topics would get the same name.
    """
    names = {topic: target_name(naming, source, topic) for topic in topics}
    refuse_collisions(Claim("this mirror", topic, target, name) for topic, name in names.items())
    return names


def refuse_collisions(claims: Iterable[Claim]) -> None:
    """Two sources must not write one target topic; names that differ in ``.`` and ``_`` only are one to Kafka's metrics and refused by it.

    Raises:
        UsageError: naming both mirrors and topics.
    """
    seen: dict[tuple[str, str], Claim] = {}
    for claim in claims:
        other = seen.setdefault((claim.target, same_to_kafka(claim.target_topic)), claim)
        if (other.mirror, other.topic) != (claim.mirror, claim.topic):
            one = "give them different names by `naming`, or exclude one of them"
            raise UsageError(
                f"target topic {claim.target_topic} on cluster {claim.target} would get the records of two topics:"
                f" {other.topic} of {other.mirror} and {claim.topic} of {claim.mirror}",
                hint=one if other.mirror == claim.mirror else "use naming: prefix, or select the topic in one mirror only",
            )


def choose(
    mirrors: Sequence[MirrorConfig],
    mirror: MirrorConfig,
    names: Iterable[str],
    aliases: Collection[str],
    written: Mapping[str, str] | None = None,
) -> tuple[list[str], list[Excluded]]:
    """Which topics a mirror copies, and why not the others: by its regexes, and by names that show where a topic came from.

    Args:
        mirrors: all of the file.
        mirror: one of them.
        names: the source's topics.
        aliases: all cluster aliases; of settings with a cluster id two that are one cluster count as one.
        written: topics on the source that other mirrors wrote, with the mirror's name; left out with ``originals_only``.

    Raises:
        UsageError: a topic would loop between mirrors, and its names do not show that.
    """
    chosen, excluded = _by_rules(mirrors, mirror, names, aliases)
    if mirror.topics.originals_only and written:
        excluded += [Excluded(name, f"mirror {written[name]} wrote it: {ONLY}") for name in chosen if name in written]
        chosen = [name for name in chosen if name not in written]
    places = _places(aliases)
    returning = {name for name in chosen if _would_return(mirrors, mirror, name, places)}
    excluded += [
        Excluded(name, f"by its name, mirrors of this file copied it from cluster {mirror.target}: copying it back would loop")
        for name in sorted(returning)
    ]
    kept = [name for name in chosen if name not in returning]
    refuse_loops(mirrors, mirror, kept, places)
    return kept, sorted(excluded, key=lambda each: each.topic)


Places = Mapping[str, str]
"""The cluster of an alias, where two aliases may lead to one; an alias that is not named is a cluster of its own."""


def _places(aliases: Collection[str]) -> Places:
    if not isinstance(aliases, Mapping):
        return {}
    first: dict[str, str] = {}
    known = {alias: settings.cluster_id for alias, settings in aliases.items() if settings.cluster_id}
    return {alias: first.setdefault(cluster_id, alias) for alias, cluster_id in known.items()}


def refuse_loops(
    mirrors: Sequence[MirrorConfig], mirror: MirrorConfig, topics: Iterable[str], places: Places = MappingProxyType({})
) -> None:
    """Make sure that no topic returns to the mirror that first copied it.

    Names that hold their source prevent it; otherwise the mirrors are followed from cluster to cluster.

    Raises:
        UsageError: with the topic and the loop of mirrors.
    """
    for topic in topics:
        circle = _circle(mirrors, mirror, topic, lambda onward, name: not _would_return(mirrors, onward, name, places), places)
        if circle:
            raise UsageError(
                f"topic {topic} would loop forever: {' -> '.join(circle)}",
                hint="use naming: prefix in these mirrors, or exclude the topic in one of them",
            )


Passes = Callable[[MirrorConfig, str], bool]
"""Whether a mirror that selects a topic copies it."""


def _would_return(mirrors: Sequence[MirrorConfig], mirror: MirrorConfig, name: str, places: Places) -> bool:
    """Whether the name shows that the topic came from the mirror's target, so that copying it back would loop."""
    came = _came_from(mirrors, mirror.source, name, mirror.target, places)
    return came and bool(_circle(mirrors, mirror, name, lambda *_: True, places, paired=True))


def _one(places: Places, alias: str, other: str) -> bool:
    return places.get(alias, alias) == places.get(other, other)


def _came_from(mirrors: Sequence[MirrorConfig], cluster: str, name: str, origin: str, places: Places) -> bool:
    """Whether mirrors whose names hold their source would give a topic of ``origin`` this name on ``cluster``."""
    for mirror in mirrors:
        if _one(places, mirror.target, cluster):
            for inner in telling_sources(mirror.naming, mirror.source, name):  # each is shorter: this ends
                if _one(places, mirror.source, origin) or _came_from(mirrors, mirror.source, inner, origin, places):
                    return True
    return False


def partner_of(mirrors: Sequence[MirrorConfig], mirror: MirrorConfig) -> MirrorConfig | None:
    """The mirror that is the reverse of this one, or of which this one is the reverse; of the two only one copies a topic."""
    return next((m for m in mirrors if mirror.name == m.reverse_of or m.name == mirror.reverse_of), None)


def _circle(
    mirrors: Sequence[MirrorConfig], first: MirrorConfig, topic: str, passes: Passes, places: Places, *, paired: bool = False
) -> list[str]:
    """The mirrors by which a topic comes back; with ``paired`` also through a mirror and its reverse, which never run together."""
    paths: list[tuple[list[str], str, str]] = [([first.name], first.target, fill(first.naming, first.source, topic))]
    while paths:
        path, cluster, name = paths.pop()
        for mirror, onward in _onward(mirrors, cluster, name, places):
            partner = None if paired else partner_of(mirrors, mirror)
            if not passes(mirror, name) or (partner is not None and partner.name in path):
                continue
            if mirror.name == first.name:
                return [*path, mirror.name]
            if mirror.name not in path:  # another loop, which is refused when that mirror is checked
                paths.append(([*path, mirror.name], mirror.target, onward))
    return []


def _onward(mirrors: Sequence[MirrorConfig], cluster: str, name: str, places: Places) -> Iterator[tuple[MirrorConfig, str]]:
    aliases = {alias for mirror in mirrors for alias in (mirror.source, mirror.target)}
    for mirror in mirrors:
        if _one(places, mirror.source, cluster) and _by_rules(mirrors, mirror, [name], aliases)[0]:
            yield mirror, fill(mirror.naming, mirror.source, name)


def _by_rules(
    mirrors: Sequence[MirrorConfig], mirror: MirrorConfig, names: Iterable[str], aliases: Collection[str]
) -> tuple[list[str], list[Excluded]]:
    """What the regexes choose and, with ``originals_only``, no name shows to be a copy."""
    rules = mirror.topics
    chosen, excluded = select(
        names, rules.include, rules.exclude, naming=mirror.naming, source=mirror.source, target=mirror.target, aliases=aliases
    )
    if not rules.originals_only:
        return chosen, excluded
    origins = {name: _origin(mirrors, mirror.source, name, aliases) for name in chosen}
    excluded += [Excluded(name, f"by its name it was copied from cluster {origin}: {ONLY}") for name, origin in origins.items() if origin]
    return [name for name in chosen if not origins[name]], excluded


def _origin(mirrors: Sequence[MirrorConfig], cluster: str, name: str, aliases: Collection[str]) -> str:
    """The other cluster from which a topic of ``cluster`` was copied last, by its name; "" if the name does not say so.

    Mirrors of other files count as well: they name topics as this file's do, or by ``prefix``.
    """
    rules: list[NamingRule] = [OTHERWISE, *(mirror.naming for mirror in mirrors)]
    others = sorted(set(aliases) - {cluster})
    return next((alias for alias in others if any(telling_sources(rule, alias, name) for rule in rules)), "")


def source_name(naming: NamingRule, source_alias: str, target_topic: str) -> str | None:
    """A source topic of a target name; None when this naming does not produce such a name."""
    return next(sources(naming, source_alias, target_topic), None)


def telling_sources(naming: NamingRule, source_alias: str, target_topic: str) -> list[str]:
    """The source topics of a target name that shows which cluster they are of; none for any other name."""
    return [topic for topic in sources(naming, source_alias, target_topic) if shows_source(naming, topic)]
