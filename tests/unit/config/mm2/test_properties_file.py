"""Java property files: escapes, continuations, separators, and the line of each key."""

from __future__ import annotations

import pytest

from mirror_pipeline.config.mm2.properties_file import Entry, parse


def test_the_forms_of_java() -> None:
    text = "\n".join(
        [
            "# comment = no",
            "  ! another",
            "",
            "a=1",
            " b : 2 ",
            "c 3",
            "d = x\\",
            "    y\\",
            "  # not a comment",
            r"e\ f\=g = tab\there A\\",
            "empty",
            "A->B.topics = a, b",
        ]
    )
    assert parse(text) == [
        Entry("a", "1", 4), Entry("b", "2", 5), Entry("c", "3", 6), Entry("d", "xy# not a comment", 7), Entry("e f=g", "tab\there A\\", 10),
        Entry("empty", "", 11), Entry("A->B.topics", "a, b", 12),
    ]  # fmt: skip


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_endings_count_once(ending: str) -> None:
    assert parse(ending.join(["a=1", "", "b=2\\", "3"])) == [Entry("a", "1", 1), Entry("b", "23", 3)]


def test_a_broken_unicode_escape_is_named_by_its_line() -> None:
    with pytest.raises(ValueError, match="line 2: "):
        parse("a=1\nb=\\u00g1")
    assert parse("a=\\u00e9") == [Entry("a", "é", 1)]


def test_a_file_that_ends_in_a_backslash_keeps_its_last_key() -> None:
    assert parse("a=1\\") == [Entry("a", "1", 1)]
