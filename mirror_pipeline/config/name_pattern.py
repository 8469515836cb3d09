r"""The two texts of ``naming: {match: 'eu\.(.*)', replace: '\1'}``, taken apart so that target names can be traced back.

``match`` is plain text and groups: whatever varies is in a group, and ``replace`` uses every group. So a target name leads back to
every source name that it can stem from: fit it to ``replace``, then put the groups into ``match``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

# Each group more multiplies the ways in which a name can be taken apart.
MOST_GROUPS = 4
_SPECIAL = frozenset(".^$*+?{}[]|")
_CLOSES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]|[^\\\[()]", re.DOTALL)
_REPLACED = re.compile(r"\\([1-9])|([^\\]+)|(\\.?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NameMatch:
    """Topics whose whole name matches the regex are named ``replace``, with its groups; others by the template ``otherwise``."""

    match: str
    replace: str
    otherwise: str

    def named(self, topic: str) -> str | None:
        """The target name of a topic; None if it does not match."""
        found = re.fullmatch(self.match, topic)
        return None if found is None else "".join(found[part] if isinstance(part, int) else part for part in _replace(self.replace))

    def sources(self, target_topic: str) -> Iterator[str]:
        """Every name that matches and is replaced by this one."""
        groups, seen = [part for part in _match(self.match) if isinstance(part, _PatternGroup)], set()
        patterns = {group.number: re.compile(group.regex) for group in groups}
        for values in _fits(_replace(self.replace), target_topic, 0, {}, patterns):
            topic = "".join(values[part.number] if isinstance(part, _PatternGroup) else part for part in _match(self.match))
            if topic and topic not in seen and self.named(topic) == target_topic:
                seen.add(topic)
                yield topic


def match_problem(match: str, replace: str) -> str:
    """Why these texts cannot name topics; empty if they can. Legal names are not checked here."""
    try:
        re.compile(match)
        groups = {part.number for part in _match(match) if isinstance(part, _PatternGroup)}
        used = {part for part in _replace(replace) if isinstance(part, int)}
    except re.error as error:
        return f'regex "{match}" does not compile: {error.msg} at position {error.pos}'
    except ValueError as error:
        return str(error)
    if len(groups) > MOST_GROUPS:
        return f'"{match}" has {len(groups)} groups, at most {MOST_GROUPS} are possible'
    if used - groups:
        return rf'"{replace}" uses \{min(used - groups)}, "{match}" has {len(groups)} group{"s" if len(groups) != 1 else ""}'
    if groups - used:
        return rf'"{replace}" does not use \{min(groups - used)}: topics that differ in that group would get one name'
    return "" if groups else f'"{match}" has no group: it names one topic; write it as map: {{{match}: {replace}}}'


@dataclass(frozen=True, slots=True)
class _PatternGroup:
    number: int
    regex: str


@lru_cache(maxsize=64)
def _match(match: str) -> tuple[str | _PatternGroup, ...]:
    """Plain text and groups. Raises ValueError for anything else that varies."""
    parts: list[str | _PatternGroup] = []
    at = 0
    while at < len(match):
        char = match[at]
        if char == "(":
            end = _closing(match, at)
            regex = match[at + 1 : end]
            if regex.startswith("?") or re.compile(regex).groups:
                raise ValueError(f'"{match}": write groups as (...), without "(?" at their start and without groups inside')
            parts.append(_PatternGroup(1 + sum(isinstance(part, _PatternGroup) for part in parts), regex))
            at = end + 1
        elif char == "\\" and at + 1 < len(match) and not match[at + 1].isalnum():
            parts.append(match[at + 1])
            at += 2
        elif char in _SPECIAL or char == "\\":
            better = '"\\." for a dot' if char == "." else "what varies as a group"
            raise ValueError(f'"{match}" holds {char} outside a group: write {better}, so that target names lead back to source names')
        else:
            parts.append(char)
            at += 1
    return tuple(parts)


def _closing(match: str, start: int) -> int:
    """Where the parenthesis at ``start`` is closed; the regex compiles."""
    depth = 0
    for token in _CLOSES.finditer(match, start):
        depth += (token[0] == "(") - (token[0] == ")")
        if not depth:
            return token.start()
    raise ValueError(f'"{match}" holds a parenthesis that is not closed')


@lru_cache(maxsize=64)
def _replace(replace: str) -> tuple[str | int, ...]:
    r"""Plain text, and numbers of groups. Raises ValueError for other escapes than ``\1`` to ``\9``."""
    parts: list[str | int] = []
    for token in _REPLACED.finditer(replace):
        if token[3]:
            raise ValueError(rf'"{replace}" holds {token[3]}; it may hold \1 to \9 and characters of topic names')
        parts.append(int(token[1]) if token[1] else token[2])
    return tuple(parts)


def _fits(
    parts: tuple[str | int, ...], text: str, at: int, values: Mapping[int, str], patterns: Mapping[int, re.Pattern[str]]
) -> Iterator[Mapping[int, str]]:
    """Every way to fit ``text`` from ``at`` on to the parts of ``replace``, as the values of the groups."""
    if not parts:
        if at == len(text):
            yield values
        return
    first, rest = parts[0], parts[1:]
    if isinstance(first, int) and first not in values:
        for end in range(len(text), at - 1, -1) if rest else (len(text),):
            if patterns[first].fullmatch(text, at, end):
                yield from _fits(rest, text, end, {**values, first: text[at:end]}, patterns)
        return
    fixed = values[first] if isinstance(first, int) else first
    if text.startswith(fixed, at):
        yield from _fits(rest, text, at + len(fixed), values, patterns)
