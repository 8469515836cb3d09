"""``mirror offsets`` and ``mirror groups``: what they ask a mirror for, and how they print the answer."""

from __future__ import annotations

import pytest

from tests.support.cli_fakes import Cli, FakeMirror


def test_an_offset_is_translated(cli: Cli) -> None:
    mirror = FakeMirror()
    ended = cli("offsets", "translate", "-t", "orders", "-o", "4711", "-p", "0", mirrors=[mirror])
    assert ended.code == 0
    for said in ("orders", "east.orders", "4,711", "-", "not yet"):
        assert said in ended.out
    expected = {"offset": 4711, "at": None, "partition": 0, "reverse": False, "generation": None}
    assert mirror.calls == [("translate", expected)]


def test_a_time_is_translated_backwards_by_a_generation(cli: Cli) -> None:
    mirror = FakeMirror()
    words = ("offsets", "translate", "-t", "orders", "--time", "2026-11-21T14:00:00Z", "--reverse", "--generation", "2", "--json")
    (row,) = cli(*words, mirrors=[mirror]).json["offsets"]
    assert set(row) == {
        "mirror", "topic", "target_topic", "partition", "generation", "source_offset", "target_offset", "state", "note",
    }  # fmt: skip
    expected = {"offset": None, "at": 1_795_269_600_000, "partition": None, "reverse": True, "generation": 2}
    assert mirror.calls == [("translate", expected)]


def test_the_map_is_shown(cli: Cli) -> None:
    ended = cli("offsets", "show", mirrors=[FakeMirror()])
    assert ended.code == 0
    for said in ("10 to 5,000", "7 to 4,990", "4,983"):
        assert said in ended.out
    (row,) = cli("offsets", "show", "--json", mirrors=[FakeMirror()]).json["partitions"]
    assert row["source_end"] == 5_000 and row["generation"] == 2


@pytest.mark.parametrize("verb", [("translate", "-t", "orders"), ("show",)])
def test_of_several_mirrors_one_must_be_named(cli: Cli, verb: tuple[str, ...]) -> None:
    ended = cli("offsets", *verb, mirrors=[FakeMirror("m"), FakeMirror("n")])
    assert ended.code == 2
    assert "error: which mirror? mirror.yaml has m, n\nhint: name one with --mirror" in ended.err


def test_groups_are_shown(cli: Cli) -> None:
    ended = cli("groups", mirrors=[FakeMirror()])
    assert ended.code == 0
    for said in ("billing", "4,711", "4,600", "90", "active on target", "no round has run yet", "1 of 1 group not in step"):
        assert said in ended.out
    (mirror,) = cli("groups", "--json", mirrors=[FakeMirror()]).json["mirrors"]
    assert set(mirror) == {"mirror", "groups", "notes", "last_round", "source_down_since"}
    assert mirror["groups"][0]["state"] == "active_on_target"
