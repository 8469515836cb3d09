"""Spans move from the buffer into the archive: never lost and never listed twice, whenever the process is killed.

    1  write the spans to new files of the archive         invisible; a killed process leaves dead files, which upkeep removes
    2  note in `archive.json` which files hold which       says what to look for after a crash
    3  commit the new files to the archive                 from here on the archive has the spans
    4  commit their removal from the buffer                from here on the buffer has not

A process that was killed between 3 and 4 left the spans in both; the next round starts by reading the note: if the new files are in the
archive it repeats step 4, otherwise it makes sure that step 3 can no longer happen, and nothing has been moved.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from mirror_pipeline.buffer.archive.archive import Archive, NewFile
from mirror_pipeline.buffer.archive.merged import day_of
from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.buffer.tables.schema import SPANS
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import SpanRef

NOTE = "archive.json"


def move(archive: Archive, spans: SpanTable, micro_batches: Collection[int]) -> list[int]:
    """Move the spans of micro-batches into the archive; those moved. Only for the holder of ``maintenance_lock``, after :func:`settle`.

    Raises:
        BufferUnusable: cannot be read or written, or another process moves spans of this lane.
    """
    contents = spans.contents(micro_batches)
    if not contents:
        return []
    groups: dict[tuple[str, str], list[SpanRef]] = {}
    times: dict[tuple[str, str], int] = {}
    for file, refs in contents.items():
        for ref in refs:
            values = ref.topic, day_of(file.modified)
            groups.setdefault(values, []).append(ref)
            times[values] = max(times.get(values, 0), file.modified)
    made: list[NewFile] = []
    try:
        for values, members in sorted(groups.items()):
            made += archive.write(values, SPANS.name, members, times[values])
    except BaseException:
        archive.discard(made)
        raise
    version, paths = archive.transaction() + 1, [file.path for file in contents]
    crash_point("archive.written")
    note = {"version": version, "files": paths, "parts": [file.part.path for file in made]}
    with explained(archive.store.uri):
        archive.store.write_file(NOTE, json.dumps(note), durable=True)
    crash_point("archive.noted")
    if not archive.add(made, version):
        archive.discard(made)
        raise BufferUnusable(f"buffer {archive.store.uri}: another process moves spans into the archive", hint="end one of them")
    crash_point("archive.added")
    gone = spans.remove(paths)
    crash_point("archive.removed")
    return gone


def settle(archive: Archive, spans: SpanTable) -> list[int]:
    """Complete, or rule out, what a killed process had begun to move; the micro-batches that left the buffer. Raises BufferUnusable."""
    with explained(archive.store.uri):
        text = archive.store.read_file(NOTE)
    if text is None:
        return []
    note = json.loads(text)
    if set(note["parts"]) <= archive.files().keys():
        return spans.remove(note["files"])
    if archive.transaction() < note["version"]:
        archive.fence(note["version"])
    return []
