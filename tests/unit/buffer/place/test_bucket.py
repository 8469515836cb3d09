"""A lane in a bucket: tables, plain files, sizes; and what is said when the bucket cannot be used."""

from __future__ import annotations

import http.client
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import obstore
import pytest
from deltalake import DeltaTable

from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.archive.move import move, settle
from mirror_pipeline.buffer.archive.selection import KeptTopic
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.bucket import carried_options
from mirror_pipeline.buffer.place.errors import explain
from mirror_pipeline.buffer.place.lane_file import LaneFile, read_lane_file, write_lane_file
from mirror_pipeline.buffer.place.place import MARKER, LaneStore, find_lanes, open_lane
from mirror_pipeline.buffer.place.usage import buffer_use, free_bytes, lane_use
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.buffer.spans.span_reader import STRETCH, SpanReader
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.buffer.tables.delta import DeltaLog
from mirror_pipeline.buffer.tables.schema import ARCHIVE
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import PartFile, Stamp
from tests.support.buffer_samples import LIFE, Settings, draft, send
from tests.support.object_store import BUCKET, ObjectStore

MB = 2**20


@pytest.fixture
def lane(object_store: ObjectStore) -> LaneStore:
    return open_lane(Settings(f"s3://{BUCKET}/deep/buffer/"), "m", "lane-0")


def staged(lane: LaneStore, micro_batch: int, *payloads: bytes) -> PartFile:
    writer = PartFileWriter(lane, micro_batch, 0)
    for number, payload in enumerate(payloads):
        writer.add(draft(10 * micro_batch + number, 10 * micro_batch + number + 1), payload)
    part = writer.close()
    assert part is not None
    return part


def test_spans_come_back_whole_and_in_stretches(lane: LaneStore) -> None:
    spans = SpanTable(lane)
    spans.ensure()
    payloads = [bytes([65 + n]) * size for n, size in enumerate((10, 70_000, 2 * STRETCH + 7, 9 * MB))]
    assert spans.commit(0, [staged(lane, 0, *payloads)])
    refs = SpanTable(pickle.loads(pickle.dumps(lane))).spans()  # noqa: S301 - what Spark does with it
    with SpanReader(lane) as reader:
        assert [bytes(reader.payload(ref)) for ref in refs] == payloads
        for ref, payload in zip(refs, payloads, strict=True):
            pieces = list(reader.stretches(ref))
            assert b"".join(pieces) == payload
            assert max(map(len, pieces)) <= STRETCH


def test_what_a_lane_travels_with_is_no_secret(lane: LaneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-of-a-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-of-a-token")
    again = open_lane(Settings(f"s3://{BUCKET}/deep/buffer"), "m", "lane-0")
    assert b"canary" not in pickle.dumps(again)
    assert again == lane


def test_files_sizes_and_lanes(lane: LaneStore) -> None:
    assert find_lanes(Settings(f"s3://{BUCKET}/deep/buffer"), "m") == []
    assert read_lane_file(lane) == LaneFile()
    write_lane_file(lane, LaneFile(state="running"))
    assert read_lane_file(lane) == LaneFile(state="running")
    assert find_lanes(Settings(f"s3://{BUCKET}/deep/buffer"), "m") == [lane]
    spans = SpanTable(lane)
    spans.ensure()
    part = staged(lane, 0, b"x" * 1000)
    spans.commit(0, [part])
    use = lane_use(lane)
    assert use.spans == part.size == spans.disk_bytes() == spans.bytes()
    assert use.logs > 0 and use.log_files == 2 and not use.running
    assert buffer_use(lane) == {"m/lane-0": use}
    assert free_bytes(lane) > 2**60
    assert spans.evict([0], target_bytes=0) == [0]
    assert spans.vacuum(grace=0) == part.size
    assert lane_use(lane).spans == 0


def test_a_holder_that_wakes_in_its_commit_comes_too_late(lane: LaneStore) -> None:
    """The number it means to commit under was taken by the fence, whichever moment it is at."""
    late, ours = SpanTable(lane), SpanTable(lane)
    late.ensure()
    assert late.commit(0, [staged(lane, 0, b"a")])
    part = staged(lane, 1, b"b")
    ours.fence()
    assert ours.last_micro_batch() == 1
    assert not late.commit(1, [part])
    assert ours.commit(2, [staged(lane, 2, b"c")])
    assert [ref.micro_batch for ref in ours.spans()] == [0, 2]
    assert ours.holds([]) and not ours.holds([part])


def test_the_ledger_of_a_late_holder_is_refused_too(lane: LaneStore) -> None:
    late, ours = Ledger(lane), Ledger(lane)
    late.ensure()
    assert late.record(0, [send(0, 5)])
    ours.fence()
    assert not late.record(1, [send(5, 9, ordinal=5)])
    assert ours.record(ours.last_record() + 1, [send(5, 9, ordinal=5)])
    assert len(ours.sends()) == 2
    revision = late._next_revision(late._producers)
    ours.save_producer(Stamp(1, 0), "west")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "_next_revision", lambda self, log: revision)
        with pytest.raises(BufferUnusable, match="was written by another run"):
            late.save_producer(Stamp(2, 0), "west")
    assert ours.producer("west") == Stamp(1, 0)


def test_files_of_a_late_holder_are_not_taken_for_ours(lane: LaneStore) -> None:
    spans = SpanTable(lane)
    spans.ensure()
    staged(lane, 0, b"theirs")

    def lost() -> None:
        raise BufferUnusable("not ours")

    with pytest.raises(BufferUnusable, match="not ours"):
        spans.discard_uncommitted(lost)
    assert spans.disk_bytes() > 0
    assert spans.discard_uncommitted() > 0
    assert spans.disk_bytes() == 0


def test_a_commit_whose_answer_is_lost_is_told_afterwards(
    lane: LaneStore, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = SpanTable(lane)
    spans.ensure()
    part = staged(lane, 0, b"a")
    really = DeltaLog._write

    def killed(self: DeltaLog, *arguments: object) -> None:
        really(self, *arguments)  # type: ignore[arg-type]
        object_store.kill()
        raise OSError("Generic S3 error: error sending request")

    monkeypatch.setattr(DeltaLog, "_write", killed)
    with pytest.raises(BufferUnusable, match="does not respond") as problem:
        spans.commit(0, [part])
    assert problem.value.retryable
    object_store.start()
    assert spans.holds([part])


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda spans, part: spans.last_micro_batch(), id="which was last"),
        pytest.param(lambda spans, part: spans.commit(1, [part]), id="commit"),
        pytest.param(lambda spans, part: spans.fence(), id="fence"),
    ],
)
def test_a_store_that_goes_away_while_a_number_is_looked_up(
    lane: LaneStore, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, ask: Callable[[SpanTable, PartFile], object]
) -> None:
    """deltalake asks the store for an application's number each time; the lane must be told that the trouble passes."""
    spans = SpanTable(lane)
    spans.ensure()
    assert spans.commit(0, [staged(lane, 0, b"a")])
    part = staged(lane, 1, b"b")
    really = DeltaTable.transaction_version

    def killed(self: DeltaTable, app_id: str) -> int | None:
        object_store.kill()
        return really(self, app_id)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "transaction_version", killed)
        with pytest.raises(BufferUnusable, match="does not respond") as problem:
            ask(spans, part)
    assert problem.value.retryable
    object_store.start()
    assert spans.last_micro_batch() == 0
    assert spans.commit(1, [part])


def test_another_programs_bucket_is_refused(object_store: ObjectStore) -> None:
    obstore.put(object_store.bucket(), "theirs/file.txt", b"x")
    with pytest.raises(BufferUnusable, match=r"holds other files \(file.txt\) and no MIRROR_BUFFER.json"):
        open_lane(Settings(f"s3://{BUCKET}/theirs"), "m", "lane-0")
    assert object_store.keys("") == ["theirs/file.txt"]
    obstore.put(object_store.bucket(), f"later/{MARKER}", json.dumps({"format": 99}).encode())
    with pytest.raises(BufferUnusable, match="format 99, this version knows"):
        open_lane(Settings(f"s3://{BUCKET}/later"), "m", "lane-0")


def test_a_bucket_that_is_missing_and_a_store_that_is_away(object_store: ObjectStore) -> None:
    with pytest.raises(BufferUnusable, match="there is no such bucket"):
        open_lane(Settings("s3://no-such-bucket/buffer"), "m", "lane-0")
    object_store.kill()
    for use in (open_lane, lambda buffer, mirror, lane: find_lanes(buffer, mirror)):
        with pytest.raises(BufferUnusable, match="the object store does not respond") as problem:
            use(Settings(f"s3://{BUCKET}/buffer"), "m", "lane-0")
        assert problem.value.retryable


Answer = Callable[[BaseHTTPRequestHandler, ObjectStore], None]


@pytest.fixture
def between(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], None]]:
    """Puts something else between the mirror and the store."""
    servers: list[ThreadingHTTPServer] = []

    def put(answer: Answer) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        for method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
            setattr(Handler, f"do_{method}", lambda handler: answer(handler, object_store))
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{servers[-1].server_port}")

    yield put
    for server in servers:
        server.shutdown()
        server.server_close()


def forgetful(handler: BaseHTTPRequestHandler, store: ObjectStore) -> None:
    """Hands on everything but the conditions, as stores do that do not know them."""
    body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    kept = {name: value for name, value in handler.headers.items() if name.lower() not in ("if-match", "if-none-match")}
    behind = http.client.HTTPConnection("127.0.0.1", store.port)
    behind.request(handler.command, handler.path, body, kept)
    answer = behind.getresponse()
    data = answer.read()
    handler.send_response(answer.status)
    for name, value in answer.getheaders():
        if name.lower() not in ("content-length", "transfer-encoding", "connection"):
            handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)


def test_a_store_without_conditional_puts_is_refused(between: Callable[[Answer], None]) -> None:
    between(forgetful)
    with pytest.raises(BufferUnusable, match="does not honour conditional puts"):
        open_lane(Settings(f"s3://{BUCKET}/buffer"), "m", "lane-0")


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "InvalidAccessKeyId", "refuses the credentials"),
        (403, "SignatureDoesNotMatch", "refuses the credentials"),
        (400, "ExpiredToken", "refuses the credentials"),
        (403, "AccessDenied", "refuses the permission"),
        (501, "NotImplemented", "does not support a required request"),
        (503, "SlowDown", "does not respond"),
    ],
)
def test_refusals_are_one_clear_line(between: Callable[[Answer], None], status: int, code: str, said: str) -> None:
    """As S3 documents its error responses."""

    def refuse(handler: BaseHTTPRequestHandler, store: ObjectStore) -> None:
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>No.</Message></Error>'.encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    between(refuse)
    with pytest.raises(BufferUnusable, match=said) as problem:
        open_lane(Settings(f"s3://{BUCKET}/buffer"), "m", "lane-0")
    assert "\n" not in problem.value.message
    assert problem.value.hint
    assert problem.value.retryable == (code == "SlowDown")
    lane = LaneStore(f"s3://{BUCKET}/buffer/m/lane-0", options=carried_options())
    with pytest.raises(BufferUnusable, match=said):
        SpanTable(lane).ensure()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token", "no credentials were found"),
        ("Generic S3 error: builder error: URL scheme is not allowed", "AWS_ENDPOINT_URL is not https"),
        ("\x1b[31m↳\x1b[0m tcp connect error", "does not respond"),
    ],
)
def test_what_is_set_wrong_is_said(text: str, said: str) -> None:
    assert said in explain("s3://b/p", OSError(text)).message


def test_spans_move_into_an_archive_in_the_bucket(lane: LaneStore) -> None:
    spans, archive = SpanTable(lane), Archive(lane)
    spans.ensure()
    archive.ensure()
    payloads = [bytes([65 + n]) * size for n, size in enumerate((10, 70_000, 9 * MB))]
    assert spans.commit(0, [staged(lane, 0, *payloads)])
    assert move(archive, spans, [0]) == [0]
    assert settle(archive, spans) == []
    assert SpanTable(lane).spans() == []
    assert lane_use(lane).archive > sum(map(len, payloads))
    topic = KeptTopic([lane], "orders", LIFE)
    (segments,) = topic.segments({0: (1, 3)}).values()
    # The first two became one span; the third would have made it too large.
    found = [(segment.start, segment.end, segment.span.ref.start, segment.span.ref.end) for segment in segments]
    assert found == [(1, 2, 0, 2), (2, 3, 2, 3)]
    with SpanReader(lane, table=ARCHIVE.name) as reader:
        assert [bytes(reader.payload(segment.span.ref)) for segment in segments] == [payloads[0] + payloads[1], payloads[2]]
    assert archive.drop_oldest(1) > 0
    assert lane_use(lane).archive < MB
