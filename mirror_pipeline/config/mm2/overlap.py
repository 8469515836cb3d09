"""Whether two flows surely copy topics of one name: a name that both select, found by trying a few that each regex suggests."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def common_name(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """A topic that both selections (``include`` and ``exclude``) take; "" when none is found, which proves nothing."""
    ours, theirs = list(_names(one["include"])), list(_names(other["include"]))
    joined = (name for pair in itertools.product(ours, theirs) for name in ("".join(pair), "".join(reversed(pair))))
    for name in (*ours, *theirs, *joined):
        if _selects(one, name) and _selects(other, name):
            return name
    return ""


def _selects(topics: Mapping[str, Any], name: str) -> bool:
    return _matches(topics["include"], name) and not _matches(topics["exclude"], name)


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _names(patterns: Sequence[str]) -> Iterator[str]:
    """Names that regexes of the usual forms match: any text, alternatives, classes, escaped dots."""
    for pattern in patterns:
        for part in (pattern, *re.sub(r"\(\?:|[()]", "", pattern).split("|")):
            kept = re.sub(r"\\([.-])", lambda match: {".": "\0", "-": "-"}[match[1]], part)
            for filler in ("x", "1", "topic"):
                yield re.sub(r"(\.|\[[^\]]*\]|\\[wd])[*+?]?", filler, kept).replace("\0", ".")
