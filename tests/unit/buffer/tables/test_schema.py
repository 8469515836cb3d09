"""docs/buffer.md names the columns that the tables have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirror_pipeline.buffer.tables import schema
from mirror_pipeline.buffer.tables.schema import TableSpec

PAGE = (Path(__file__).parents[4] / "docs" / "buffer.md").read_text(encoding="utf-8").partition("\n## Tables\n")[2].partition("\n## ")[0]
SECTIONS = {name: text for name, _, text in (section.partition("\n") for section in PAGE.split("\n### ")[1:]) if "| column |" in text}
SPECS = {spec.name: spec for spec in vars(schema).values() if isinstance(spec, TableSpec)}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_page_has_every_column_in_order(name: str) -> None:
    rows = re.findall(r"^\| (`.*?`) \|", SECTIONS[name], re.MULTILINE)
    assert [column for row in rows for column in re.findall(r"`(\w+)`", row)] == SPECS[name].schema.names


def test_only_these_tables_have_no_columns_on_the_page() -> None:
    assert SPECS.keys() - SECTIONS.keys() == {"archive", "promotions", "failover_steps", "topic_changes"}
