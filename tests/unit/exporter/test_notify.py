"""Trouble is told once when it has lasted, and once when it is over, over a real web server and a real mail server."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.config.secrets import SecretRef
from mirror_pipeline.config.settings import NotifyConfig
from mirror_pipeline.exporter.causes import causes
from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.exporter.notify import Notifier, send
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.reports import LaneStatus, MirrorStatus
from tests.support.webhook import web_server

GOOD = LaneStatus("lane-0", "running", 900.0, 1, "here", 1.0, (), 0, 0, 0, 0.0, 0.0)
BAD = TopicLag("pay", "east.pay", (), state="halted", code="trimmed", reason="offsets are gone", hint="resolve it")
CONFIG = NotifyConfig(("json://a", "json://b"), after=60.0)


def facts(lane: LaneStatus = GOOD, *topics: TopicLag, gaps: int = 0, error: str = "") -> Facts:
    status = MirrorStatus("m", "east", "west", (lane,), 0, 1, 0, 0, 0)
    return Facts("m", status, gap_records=gaps, lag=MirrorLag("m", topics, 0.0), lag_at=0.0, error=error)


class Channels:
    """Takes messages, but for addresses in ``refusing``."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, str]] = []
        self.refusing: set[str] = set()

    def __call__(self, address: str, title: str, text: str) -> bool:
        if address in self.refusing:
            return False
        self.sent.append((address, title, text))
        return True

    def titles(self) -> list[str]:
        found = [f"{address[-1]} {title}" for address, title, _ in self.sent]
        self.sent.clear()
        return found


@pytest.fixture
def channels() -> Channels:
    return Channels()


def test_one_message_when_it_has_lasted_and_one_when_it_is_over(tmp_path: Path, channels: Channels) -> None:
    notifier = Notifier(tmp_path, channels)
    for now in (0.0, 59.0):
        notifier.look([facts(GOOD, BAD)], CONFIG, now)
    assert channels.titles() == []
    notifier.look([facts(GOOD, BAD)], CONFIG, 60.0)
    assert channels.sent[0][2] == "topic pay is halted (trimmed): offsets are gone; resolve it"
    assert channels.titles() == ["a mirror m: topic pay is halted (trimmed)", "b mirror m: topic pay is halted (trimmed)"]
    again = Notifier(tmp_path, channels)
    again.look([facts(GOOD, BAD)], CONFIG, 90.0)
    assert channels.titles() == [], "a restart repeats nothing"
    again.look([facts()], CONFIG, 180.0)
    assert channels.sent[0][2] == "topic pay is halted (trimmed): over after 3 m 00 s"
    assert channels.titles() == [f"{to} mirror m: over: topic pay is halted (trimmed)" for to in "ab"]
    again.look([facts()], CONFIG, 300.0)
    assert channels.titles() == []


def test_a_blip_is_never_told(tmp_path: Path, channels: Channels) -> None:
    notifier = Notifier(tmp_path, channels)
    for now, topics in ((0.0, (BAD,)), (50.0, ()), (55.0, (BAD,)), (100.0, (BAD,)), (110.0, ())):
        notifier.look([facts(GOOD, *topics)], CONFIG, now)
    assert channels.titles() == []


def test_an_address_that_takes_nothing_holds_up_no_other_and_is_told_later(tmp_path: Path, channels: Channels) -> None:
    notifier = Notifier(tmp_path, channels)
    channels.refusing = {"json://a"}
    for now in (0.0, 70.0, 80.0):
        notifier.look([facts(GOOD, BAD)], CONFIG, now)
    assert channels.titles() == ["b mirror m: topic pay is halted (trimmed)"]
    channels.refusing = set()
    notifier.look([facts(GOOD, BAD)], CONFIG, 90.0)
    assert channels.titles() == ["a mirror m: topic pay is halted (trimmed)"]


def test_many_topics_are_one_message(tmp_path: Path, channels: Channels) -> None:
    notifier = Notifier(tmp_path, channels)
    topics = [replace(BAD, topic=f"t{number}") for number in range(8)]
    for now in (0.0, 60.0):
        notifier.look([facts(GOOD, *topics)], NotifyConfig(("json://a",), 60.0), now)
    ((_, title, text),) = channels.sent
    assert title == "mirror m: topic t0 is halted (trimmed), and 7 more" and text.endswith("\nand 3 more")


def test_records_that_were_given_up_are_told_at_once_and_only_once(tmp_path: Path, channels: Channels) -> None:
    notifier = Notifier(tmp_path, channels)
    for gaps in (5, 5, 12, 12):
        notifier.look([facts(gaps=gaps)], NotifyConfig(("json://a",), 60.0), 0.0)
    assert channels.titles() == ["a mirror m: 7 source offsets were given up"]


def test_before_the_first_look_nothing_is_over(tmp_path: Path, channels: Channels) -> None:
    notifier = Notifier(tmp_path, channels)
    for now in (0.0, 60.0):
        notifier.look([facts(GOOD, BAD)], CONFIG, now)
    channels.sent.clear()
    Notifier(tmp_path, channels).look([Facts("m")], CONFIG, 70.0)
    assert channels.titles() == []


def test_nothing_is_over_that_cannot_be_looked_at(tmp_path: Path, channels: Channels) -> None:
    """After a restart the mirror's own files are read, while its source does not answer."""
    late = TopicLag("t", "x", (PartitionLag(0, 0, 5, 0, 5),), 400.0, expires_seconds=60.0)
    down = replace(GOOD, target_down_since=1.0)
    notifier = Notifier(tmp_path, channels)
    for now in (0.0, 60.0):
        notifier.look([facts(down, BAD, late)], CONFIG, now)
    channels.sent.clear()
    again = Notifier(tmp_path, channels)
    again.look([replace(facts(error="no broker"), lag=None, lag_at=None)], CONFIG, 70.0)
    assert channels.titles() == ["a mirror m: over: the target is down", "b mirror m: over: the target is down"], "that is in its files"
    again.look([facts(GOOD, BAD, late)], CONFIG, 80.0)
    assert channels.titles() == []


def test_a_secret_that_is_missing_stops_no_other_address(tmp_path: Path, channels: Channels) -> None:
    notifier = Notifier(tmp_path, channels)
    for now in (0.0, 60.0):
        notifier.look([facts(GOOD, BAD)], NotifyConfig((SecretRef("${env:NOT_THERE}"), "json://b"), 60.0), now)
    assert channels.titles() == ["b mirror m: topic pay is halted (trimmed)"]


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        (facts(), []),
        (facts(replace(GOOD, target_down_since=1.0, message="refused")), ["target down"]),
        (facts(replace(GOOD, source_down_since=1.0)), ["source down"]),
        (facts(replace(GOOD, state="finished"), TopicLag("t", "x", (PartitionLag(0, 0, 5, 0, 5),), 400.0)), ["unattended", "behind"]),
        (facts(replace(GOOD, state="failed", message="disk")), ["failed"]),
        (facts(replace(GOOD, state="stale")), ["stale"]),
        (facts(GOOD, TopicLag("t", "x", (), expires_seconds=60.0)), ["retention"]),
        (facts(error="no broker"), ["blind"]),
    ],
)
def test_what_is_wrong(found: Facts, kinds: list[str]) -> None:
    assert [cause.kind for cause in causes(found)] == kinds


@contextmanager
def mail_server(taken: list[str]) -> Iterator[int]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test\r\n")
            for line in self.rfile:
                word = line[:4].upper()
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    taken.append("".join(iter(lambda: self.rfile.readline().decode().rstrip("\r\n") + "\n", ".\n")))
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_messages_reach_a_web_server_and_a_mail_server() -> None:
    posts: list[dict[str, Any]] = []
    mails: list[str] = []
    with web_server(posts) as web, mail_server(mails) as mail:
        assert send(f"json://127.0.0.1:{web}/hook", "mirror m: halted", "why")
        assert send(f"mailto://127.0.0.1:{mail}?from=mirror@example.com&to=you@example.com", "mirror m: halted", "why")
    assert (posts[0]["title"], posts[0]["message"]) == ("mirror m: halted", "why")
    assert "Subject: mirror m: halted" in mails[0]
    assert not send(f"json://127.0.0.1:{web}/hook", "nobody", "is there")
    assert not send("nonsense", "no", "address")
