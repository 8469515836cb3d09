"""Names on the target: built, checked, and kept from colliding or looping."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirror_pipeline.config import MirrorConfig
from mirror_pipeline.config.naming import OTHERWISE, NamingRule, fill, same_to_kafka, shows_source, sources, topic_name_problem
from mirror_pipeline.errors import UsageError
from mirror_pipeline.halts import Halt, colliding, looping, renamed, unnamable
from mirror_pipeline.reports import Excluded
from mirror_pipeline.topics.select import select

ONLY = "topics.originals_only leaves out copies"


Known = Callable[[MirrorConfig], Mapping[str, str]]
"""Target topic by source topic of everything that a mirror has begun to copy."""


@dataclass(frozen=True, slots=True)
class Named:
    """The target names of some source topics, and the topics that cannot be copied under theirs."""

    names: dict[str, str]
    refused: dict[str, Halt]


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
    problem = _name_problem(name)
    if problem:
        halt = unnamable(topic, name, problem)
        raise UsageError(halt.message, hint=halt.hint)
    return name


def _name_problem(name: str) -> str:
    return topic_name_problem(name) or ("is the name of an internal topic" if name.startswith("__") else "")


def name_topics(
    mirrors: Sequence[MirrorConfig], mirror: MirrorConfig, topics: Iterable[str], aliases: Collection[str], known: Known
) -> Named:
    """Target names of chosen topics; a name that cannot be used, a collision and a loop each refuse their own topics alone.

    What has begun continues: of several topics under one name the one that was copied to it, of a loop the mirrors that copied the topic.

    Args:
        mirrors: all of the file.
        mirror: one of them.
        topics: what it selects.
        aliases: all cluster aliases; of settings with a cluster id two that are one cluster count as one.
        known: read only where topics are refused.
    """
    names = {topic: fill(mirror.naming, mirror.source, topic) for topic in topics}
    problems = {topic: problem for topic, name in names.items() if (problem := _name_problem(name))}
    shared = _shared_names(names)
    places = _places(aliases)
    circles = {topic: circle for topic in names if (circle := loop_of(mirrors, mirror, topic, places))}
    if not problems and not shared and not circles:
        return Named(names, {})
    own = known(mirror)
    refused = {topic: unnamable(topic, names[topic], problem) for topic, problem in problems.items()}
    for topics_of_one in shared:
        refused |= _colliding(topics_of_one, names, mirror.target, own)
    elsewhere = [topic for topic in refused if own.get(topic, names[topic]) != names[topic]]
    refused |= {topic: renamed(topic, own[topic], names[topic]) for topic in elsewhere}
    for topic in circles:
        circle = loop_of(mirrors, mirror, topic, places, known) if topic in own else circles[topic]
        if circle:
            refused[topic] = looping(topic, circle, begun=topic in own)
    return Named({topic: name for topic, name in names.items() if topic not in refused}, refused)


def _shared_names(names: Mapping[str, str]) -> list[list[str]]:
    """Topics that would share a target topic; names that differ in ``.`` and ``_`` only collide in Kafka's metrics, and it refuses them."""
    by_form: dict[str, list[str]] = {}
    for topic, name in names.items():
        by_form.setdefault(same_to_kafka(name), []).append(topic)
    return [topics for topics in by_form.values() if len(topics) > 1]


def _colliding(topics: Sequence[str], names: Mapping[str, str], target: str, own: Mapping[str, str]) -> dict[str, Halt]:
    """Of topics that share a name, those that may not have it: all but the one that was copied to it. Of new ones none is preferred."""
    owner = next((topic for topic in topics if own.get(topic) == names[topic]), "")
    others = [topic for topic in topics if topic != owner]
    return {topic: colliding(topic, names[topic], target, owner or next(t for t in topics if t != topic)) for topic in others}


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
    return [name for name in chosen if name not in returning], sorted(excluded, key=lambda each: each.topic)


Places = Mapping[str, str]
"""The cluster of an alias, where two aliases may lead to one; an alias that is not named is a cluster of its own."""


def _places(aliases: Collection[str]) -> Places:
    if not isinstance(aliases, Mapping):
        return {}
    first: dict[str, str] = {}
    known = {alias: settings.cluster_id for alias, settings in aliases.items() if settings.cluster_id}
    return {alias: first.setdefault(cluster_id, alias) for alias, cluster_id in known.items()}


def loop_of(
    mirrors: Sequence[MirrorConfig], mirror: MirrorConfig, topic: str, places: Places, known: Known | None = None
) -> list[str]:
    """The mirrors by which a topic would return to the mirror that first copied it; none where it does not.

    Names that hold their source prevent it; otherwise the mirrors are followed from cluster to cluster.

    Args:
        mirrors: all of the file.
        mirror: one of them.
        topic: a topic that it selects.
        places: of all cluster aliases.
        known: follow only mirrors that have begun to copy the topic.
    """

    def passes(onward: MirrorConfig, name: str) -> bool:
        return not _would_return(mirrors, onward, name, places) and (known is None or name in known(onward))

    return _circle(mirrors, mirror, topic, passes, places)


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


def telling_sources(naming: NamingRule, source_alias: str, target_topic: str) -> list[str]:
    """The source topics of a target name that shows which cluster they are of; none for any other name."""
    return [topic for topic in sources(naming, source_alias, target_topic) if shows_source(naming, topic)]
