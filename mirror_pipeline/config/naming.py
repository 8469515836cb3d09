"""Rules for topic names and naming templates (``topics.naming`` applies them to topics)."""

from __future__ import annotations

import re

LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
MAX_TOPIC_LENGTH = 249
PRESETS = {"prefix": "{source}.{topic}", "identity": "{topic}"}
_FIELD = re.compile(r"\{([^{}]*)\}")


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


def template_of(naming: str) -> str:
    """The template that ``prefix`` or ``identity`` stands for, or the template itself."""
    return PRESETS.get(naming, naming)


def template_problem(naming: str) -> str:
    """What is wrong with a ``naming`` value; empty when nothing is."""
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


def fill(naming: str, source: str, topic: str) -> str:
    """The target name of a topic, unchecked."""
    values = {"source": source, "topic": topic}
    return _FIELD.sub(lambda match: values[match.group(1)], template_of(naming))
