"""The named views of ``mirror sql`` are the queries that docs/buffer.md explains and tests ask."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirror_pipeline.operations.sql import VIEWS

DOCS = (Path(__file__).parents[3] / "docs" / "buffer.md").read_text()
EXPLAINED = {
    "copied": "What was copied when",
    "positions": "How far is each partition",
    "holes": "Why offsets have no record",
    "buffered": "What the buffer holds",
}


@pytest.mark.parametrize("view", sorted(EXPLAINED))
def test_a_view_is_the_documented_query(view: str) -> None:
    documented = re.search(rf"### {EXPLAINED[view]}\n.*?```sql\n(.*?)```", DOCS, re.S)
    assert documented is not None
    unordered = re.sub(r"ORDER BY (minute|topic|spans\.topic|present\.topic).*", "", documented[1], flags=re.S)
    assert VIEWS[view].split() == unordered.split()


def test_every_view_is_in_the_table() -> None:
    table = DOCS.split("| view | one row |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(VIEWS)
