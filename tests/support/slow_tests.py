"""Which of the slow tests run."""

from __future__ import annotations


def chosen_slow(names: list[str], how: str, day: int) -> list[str]:
    """Which of the slow tests run: one after the other by the day's number, all, or none."""
    if how == "rotate":
        return [names[day % len(names)]] if names else []
    return names if how == "all" else []
