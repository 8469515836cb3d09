"""Compare two streams of RecordBatches record by record, in order. Pure: no network.

Pass one walks both streams in step. Where they differ it looks ahead until they agree again and keeps what is in
between as candidates. Everything else is equal on both sides, so the candidates alone distinguish a lost record from
a moved one. Pass two searches the whole source for surplus records: a duplicate is there, a foreign record is not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from mirror_pipeline.kafka.records.batch import OpenRecord, Record, content
from mirror_pipeline.verify.pieces import Candidate, Contents, Piece, Trace, contents, difference_text, digest, equal_fields, trace

# How far to look ahead for a place where both sides agree again; both bounds hold for each side.
WINDOW_RECORDS = 32_768
WINDOW_BYTES = 32 << 20
FIRST_WINDOW = 64
# Places searched for a record that occurs many times, such as a null record: it is a poor anchor.
ANCHOR_PLACES = 8
# Above this many possible pairs the best pairing is not searched: records are paired in order.
PAIRING = 40_000

@dataclass(slots=True)
class Alignment:
    """The outcome of pass one. ``stopped`` says that it ended early, at ``limit`` candidates.

    With a budget it may also end where both sides agree: ``resume`` then gives the next offset of each. ``beyond`` is the first source
    offset after the end of a target that is compared as the source's beginning; None where both end together.
    """

    records: int = 0
    bytes: int = 0
    candidates: list[Candidate] = field(default_factory=list)
    stopped: bool = False
    resume: tuple[int, int] | None = None
    beyond: int | None = None


class AlignedSide:
    """One stream: opened records waiting to be matched, then batches not yet opened."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces: Iterator[Piece] = iter(pieces)
        self._next: Piece | None = None
        self.pending: deque[OpenRecord] = deque()
        self.bytes = 0
        self.next = 0

    def peek(self) -> Piece | None:
        """The next batch that is not decoded yet, None at the end."""
        if self._next is None:
            self._next = next(self._pieces, None)
        return self._next

    def take(self, piece: Piece) -> Piece:
        """Take the batch that ``peek`` showed."""
        self._next = None
        self.bytes += piece.header.size
        self.next = piece.header.next_offset
        return piece

    def decode(self) -> bool:
        """Ensure that a record is pending; False at the end of the stream."""
        while not self.pending and (piece := self.peek()) is not None:
            self.pending.extend(self.take(piece).opened())
        return bool(self.pending)

    def widen(self, records: int) -> None:
        """Decode further batches until this many records, or the window's bytes, are pending."""
        held = 0
        counted = 0
        while len(self.pending) < records and (piece := self.peek()) is not None:
            self.pending.extend(self.take(piece).opened())
            for index in range(counted, len(self.pending)):
                held += len(self.pending[index].tail)
            counted = len(self.pending)
            if held > WINDOW_BYTES:
                return


def align(
    source: Iterable[Piece],
    target: Iterable[Piece],
    *,
    limit: int,
    budget: int | None = None,
    prefix: bool = False,
) -> Alignment:
    """Match two streams in order (pass one).

    Args:
        source: batches of one source partition, committed data only.
        target: batches of the target partition that must hold the same records.
        limit: stop at this many candidates.
        budget: pause after this many bytes of the source, at the next batch boundary that both sides share.
        prefix: the target need only hold the source's beginning: what the source has after it is no difference.
    """
    left, right = AlignedSide(source), AlignedSide(target)
    found = Alignment()
    while len(found.candidates) < limit:
        if budget is not None and found.bytes >= budget and not left.pending and not right.pending:
            found.resume = (left.next, right.next)
            return found
        if not left.pending and not right.pending and _skip_equal_batch(left, right, found):
            pass
        elif left.decode() & right.decode():
            found.records += _match(left.pending, right.pending)
            if left.pending and right.pending:
                _resync(left, right, found, prefix)
        elif prefix and left.pending:
            found.beyond = left.pending[0].offset
            return found
        elif left.pending or right.pending:
            _resync(left, right, found, prefix)
        else:
            return found
        found.bytes = left.bytes
    found.stopped = True
    return found


def _skip_equal_batch(left: AlignedSide, right: AlignedSide, found: Alignment) -> bool:
    a, b = left.peek(), right.peek()
    if a is None or b is None or not a.same_bytes(b):
        return False
    left.take(a)
    right.take(b)
    found.records += a.header.records
    return True


def _match(left: deque[OpenRecord], right: deque[OpenRecord]) -> int:
    matched = 0
    # equal tails are equal contents; unequal ones may still be, since lengths can be written in several ways
    while left and right and (left[0][1:3] == right[0][1:3] or contents(left[0]) == contents(right[0])):
        left.popleft()
        right.popleft()
        matched += 1
    return matched


def _resync(left: AlignedSide, right: AlignedSide, found: Alignment, prefix: bool) -> None:
    window = FIRST_WINDOW
    while True:
        left.widen(window)
        right.widen(window)
        ended = right.peek() is None and (prefix or left.peek() is None)
        anchor = find_anchor([contents(r) for r in left.pending], [contents(r) for r in right.pending], final=ended)
        if anchor is not None or ended or window >= WINDOW_RECORDS:
            break
        window *= 8
    a, b = anchor or (len(left.pending), len(right.pending))
    if prefix and ended and anchor is None:
        a = _altered_at_end(left, right)
    lost = [content(left.pending.popleft()) for _ in range(a)]
    more = [content(right.pending.popleft()) for _ in range(b)]
    found.records += len(lost)
    found.candidates += between(lost, more)


def _altered_at_end(left: AlignedSide, right: AlignedSide) -> int:
    """How many source records the last target records, which equal none of them, may be altered copies of: all others lie beyond."""
    more = [content(record) for record in right.pending]
    likely = pair([content(record) for record, _ in zip(left.pending, more, strict=False)], more)
    pairs = [place for place, candidate in enumerate(likely) if candidate.source and candidate.target]
    return sum(candidate.source is not None for candidate in likely[: pairs[-1] + 1]) if pairs else 0


def find_anchor(left: list[Contents], right: list[Contents], *, final: bool) -> tuple[int, int] | None:
    """The nearest place where both lists agree again for two records in a row (one, at the end), as two indexes."""
    places: dict[Contents, list[int]] = {}
    for index, record in enumerate(right):
        known = places.setdefault(record, [])
        if len(known) < ANCHOR_PLACES:
            known.append(index)
    best: tuple[int, int] | None = None
    for a, record in enumerate(left):
        if best is not None and a >= sum(best):
            break
        for b in places.get(record, ()):
            if (best is None or a + b < sum(best)) and _agrees_on(left, right, a + 1, b + 1, final):
                best = (a, b)
    return best


def _agrees_on(left: list[Contents], right: list[Contents], a: int, b: int, final: bool) -> bool:
    if a < len(left) and b < len(right):
        return left[a] == right[b]
    return final


def between(lost: list[Record], more: list[Record]) -> list[Candidate]:
    """The unmatched records of a range in which the sides never agree twice in a row; single equal records are left out."""
    if not 0 < len(lost) * len(more) <= PAIRING:
        return pair(lost, more)
    result: list[Candidate] = []
    matcher = SequenceMatcher(None, [r[1:] for r in lost], [r[1:] for r in more], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            result += pair(lost[a:b], more[c:d])
    return result


def pair(lost: list[Record], more: list[Record]) -> list[Candidate]:
    """Pair the unmatched records that are probably one record altered: two of its four fields are still equal."""
    if not more:
        return [Candidate(trace(r), None) for r in lost]
    result: list[Candidate] = []
    search = len(lost) * len(more) <= PAIRING
    waiting = deque(lost)
    for record in more:
        best = _closest(record, waiting) if search else 0
        if best is None or not waiting:
            result.append(Candidate(None, trace(record)))
            continue
        result += [Candidate(trace(waiting.popleft()), None) for _ in range(best)]
        twin = waiting.popleft()
        result.append(Candidate(trace(twin), trace(record), difference_text(twin, record)))
    return result + [Candidate(trace(r), None) for r in waiting]


def _closest(record: Record, among: deque[Record]) -> int | None:
    scores = [equal_fields(record, other) for other in among]
    best = max(scores, default=0)
    return scores.index(best) if best >= 2 else None


# Pass two opens the first FIRST_SAMPLES batches and every SAMPLE_EVERY-th one, to learn how far times go back inside a batch.
FIRST_SAMPLES = 16
SAMPLE_EVERY = 256


def find_digests(pieces: Iterable[Piece], wanted: Iterable[Trace]) -> set[bytes]:
    """Which of the wanted records occur in a stream (pass two).

    A batch is opened when one of the wanted times lies between its base and its newest time. Records may be older than
    their batch's base time; how much older is learned from the batches that are opened, some of which are samples.
    """
    left: dict[int, set[bytes]] = {}
    for want in wanted:
        left.setdefault(want.timestamp, set()).add(want.digest)
    times = sorted(left)
    found: set[bytes] = set()
    disorder = 0
    for number, piece in enumerate(pieces):
        header = piece.header
        sampled = number < FIRST_SAMPLES or number % SAMPLE_EVERY == 0 or header.magic < 2 or header.log_append_time or piece.timeless
        if not sampled and bisect_left(times, header.base_timestamp - disorder) == bisect_right(times, header.max_timestamp):
            continue
        for record in piece.opened():
            disorder = max(disorder, header.base_timestamp - record.timestamp)
            marks = left.get(record.timestamp)
            if marks and (mark := digest(content(record))) in marks:
                found.add(mark)
    return found
