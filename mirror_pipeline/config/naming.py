"""Names of target topics: the rules that ``naming`` can state, how each names a topic, and what a target name says of its source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mirror_pipeline.config.name_pattern import NameMatch

LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
MAX_TOPIC_LENGTH = 249
PRESETS = {"prefix": "{source}.{topic}", "identity": "{topic}"}
OTHERWISE = "prefix"
_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class NameMap:
    """Target names by source topic; a topic that is not listed is named by the template ``otherwise``."""

    names: Mapping[str, str]
    otherwise: str = OTHERWISE


NamingRule = str | NameMap | NameMatch
"""``prefix``, ``identity`` or a template; or a map or a regex with such a template for the topics that it leaves."""


def topic_name_problem(name: str) -> str:
    """Why Kafka refuses a topic name; empty when it does not (Kafka sources, ``Topic.validate``)."""
    if not name:
        return "is empty"
    if name in (".", ".."):
        return 'must not be "." or ".."'
    if len(name) > MAX_TOPIC_LENGTH:
        return f"has {len(name)} characters, Kafka allows {MAX_TOPIC_LENGTH}"
    if not LEGAL_TOPIC.fullmatch(name):
        wrong = next(c for c in name if not LEGAL_TOPIC.fullmatch(c))
        return f'holds "{wrong}"; Kafka allows letters, digits, ".", "_" and "-"'
    return ""


def same_to_kafka(name: str) -> str:
    """The form in which Kafka compares names for collisions (Kafka sources, ``Topic.unifyCollisionChars``)."""
    return name.replace(".", "_")


def template_of(naming: NamingRule, topic: str | None = None) -> str:
    """The template that names a topic; "" where a map or a regex names it.

    Without a topic: the template of the topics that no map and no regex names.
    """
    rest = naming if isinstance(naming, str) else naming.otherwise
    return "" if topic is not None and _named(naming, topic) is not None else PRESETS.get(rest, rest)


def template_problem(naming: str) -> str:
    """What is wrong with ``prefix``, ``identity`` or a template; empty when nothing is."""
    template = template_of(naming)
    fields = _FIELD.findall(template)
    if not fields:
        return 'is neither "prefix" nor "identity", and as a template it lacks {topic}, e.g. "{source}.{topic}"'
    for name in fields:
        if name not in ("source", "topic"):
            return f"does not know {{{name}}}; a template may hold {{source}} and {{topic}}"
    if "topic" not in fields:
        return 'lacks {topic}: all topics would get one name; write e.g. "{source}.{topic}"'
    if len(fields) != len(set(fields)):
        return "holds a placeholder twice"
    rest = _FIELD.sub("", template)
    problem = topic_name_problem(rest) if rest not in ("", ".", "..") else ""
    if problem:
        return f"makes illegal topic names: it {problem}"
    return "makes names of internal topics" if template.startswith("__") else ""


def fill(naming: NamingRule, source: str, topic: str) -> str:
    """The target name of a topic, unchecked."""
    named = _named(naming, topic)
    if named is not None:
        return named
    values = {"source": source, "topic": topic}
    return _FIELD.sub(lambda match: values[match.group(1)], template_of(naming))


def sources(naming: NamingRule, source: str, target_topic: str) -> Iterator[str]:
    """Every topic of cluster ``source`` that ``naming`` would give this target name: none, one, rarely several."""
    if isinstance(naming, NameMap):
        yield from (topic for topic, name in naming.names.items() if name == target_topic)
    elif isinstance(naming, NameMatch):
        yield from naming.sources(target_topic)
    before, after = template_of(naming).replace("{source}", source).split("{topic}")
    inner = target_topic[len(before) : len(target_topic) - len(after)]
    if inner and before + inner + after == target_topic and template_of(naming, inner):
        yield inner


def shows_source(naming: NamingRule, topic: str) -> bool:
    """Whether the target name of a topic holds the alias of its source cluster."""
    return "{source}" in template_of(naming, topic)


def _named(naming: NamingRule, topic: str) -> str | None:
    """The name that a map or a regex gives a topic; None where the template does."""
    if isinstance(naming, NameMap):
        return naming.names.get(topic)
    return naming.named(topic) if isinstance(naming, NameMatch) else None
