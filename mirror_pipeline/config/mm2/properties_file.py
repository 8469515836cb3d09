"""Java property files, as ``java.util.Properties.load`` reads them, with the line of every key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SPACE = " \t\f"
# A key ends at the first "=", ":" or white space that is not escaped; one "=" or ":" may follow the white space.
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value, and the line at which it begins, counted from 1."""

    key: str
    value: str
    line: int


def trailing(entry: Entry) -> str:
    """What to say of a value that cannot be read and that a comment or quotes surround; "" otherwise."""
    comment = re.search(r"\s[#!].*", entry.value)
    if comment:
        return f'; "{comment[0].strip()[:30]}" belongs to the value: Java property files have no comments at the end of a line'
    return "; the quotes belong to the value: Java property files have none" if re.fullmatch(r"(['\"]).*\1", entry.value) else ""


def parse(text: str) -> list[Entry]:
    r"""Every entry in the order of the file, repeated keys included. Raises ValueError ``line N: ...`` for a broken ``\u`` escape."""
    entries = []
    for line, logical in _logical_lines(text):
        match = _KEY.fullmatch(logical)
        assert match is not None  # noqa: S101 - the pattern matches any text
        entries.append(Entry(_unescape(match[1], line), _unescape(match[2], line).rstrip(), line))
    return entries


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, those that end in an odd number of backslashes joined with the next."""
    held, first = "", 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = natural.lstrip(_SPACE)
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            held += line[:-1]
            continue
        yield first, held + line
        held, first = "", 0
    if first:
        yield first, held


def _unescape(text: str, line: int) -> str:
    def plain(match: re.Match[str]) -> str:
        found = match[1]
        if len(found) == 5:
            return chr(int(found[1:], 16))
        if found == "u":
            raise ValueError(f"line {line}: \\u must be followed by four hexadecimal digits")
        return _ESCAPES.get(found, found)

    return _ESCAPED.sub(plain, text)
