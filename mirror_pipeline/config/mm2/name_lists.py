"""Comma lists of names and Java regexes, as regexes of mirror.yaml."""

from __future__ import annotations

import re
import warnings

from mirror_pipeline.config.mm2.properties_file import Entry, trailing
from mirror_pipeline.config.mm2.scoped_keys import ScopedKeys, split_list

_FLAGS = re.compile(r"\(\?[a-zA-Z]+(-[a-zA-Z]+)?\)")


def patterns(entry: Entry, keys: ScopedKeys) -> list[str]:
    """The regexes of a list; what Python does not read as Java does is noted as a problem."""
    stray = trailing(entry) or _no_name(entry)
    if stray:
        keys.problem(entry, f"matches nothing{stray}")
        return []
    parts = split_list(entry.value)
    for part in parts:
        why = _trouble(part, last=part is parts[-1])
        if why:
            keys.problem(entry, why)
            return []
    return parts


def _no_name(entry: Entry) -> str:
    """A character in a list of topics that no topic name has; groups may have any name."""
    wrong = re.search(r"[\"'#@/%~`]", entry.value) if "topics" in entry.key else None
    return f": no topic name holds {wrong[0]}" if wrong else ""


def _trouble(part: str, *, last: bool) -> str:
    if not part:
        return "has an empty entry: two commas, or a comma at an end; an empty regex would match nothing"
    if _FLAGS.match(part) and not last:
        return f'"{part}": MirrorMaker joins the entries, so its flag also holds for those after it; write it as the last one'
    plain = re.sub(r"\\.", "", part)
    if plain.count("{") != plain.count("}"):
        return f'regex "{part}" has a brace without its pair: a comma always ends an entry, so write repetitions without one'
    try:
        with warnings.catch_warnings():
            # "[a-z&&[^b]]" and nested sets: an intersection in Java, ordinary characters in Python.
            warnings.simplefilter("error")
            re.compile(part)
    except re.error as error:
        hint = '; for any text write ".*"' if part.startswith(("*", "?", "+")) else "; a comma always ends an entry"
        return f'regex "{part}" does not compile: {error.msg} at position {error.pos}{hint}'
    except (FutureWarning, DeprecationWarning):
        return f'regex "{part}" means something else in Python than in Java (a set inside a set); write it without'
    return ""
