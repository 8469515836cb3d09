"""Which of the slow tests run."""

from __future__ import annotations


def chosen(names: list[str], how: str, day: int, *, parts: int | None = None) -> list[str]:
    """Which of the tests run: all, none, or every ``parts``-th, others by the day's number; without ``parts`` a single one."""
    if how == "rotate":
        parts = parts or max(1, len(names))
        return names[day % parts :: parts]
    return names if how == "all" else []
