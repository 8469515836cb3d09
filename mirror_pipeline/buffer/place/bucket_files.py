"""A bucket as a pyarrow file system: just what the Parquet readers and writers of the buffer need."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import obstore
import pyarrow as pa
from pyarrow import fs

from mirror_pipeline.buffer.place.bucket import PART_BYTES, PARTS_AT_ONCE, Objects, Options, reached


class _Reader(io.RawIOBase):
    """A file of which each read is one range GET: pyarrow asks for just what it needs."""

    def __init__(self, objects: Objects, name: str) -> None:
        super().__init__()
        self._objects, self._key = objects, objects.key(name)
        with reached():
            self._size = obstore.head(objects.store, self._key)["size"]
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._size - self._at)
        size = left if size is None or size < 0 else min(size, left)
        if not size:
            return b""
        with reached():
            data = obstore.get_range(self._objects.store, self._key, start=self._at, length=size)
        self._at += size
        return bytes(data)


class _ObjectWriter(io.RawIOBase):
    """A file that exists once it is closed: in one PUT while it is small, else as a multipart upload with a few parts in memory."""

    def __init__(self, objects: Objects, name: str) -> None:
        super().__init__()
        self._out = obstore.open_writer(objects.store, objects.key(name), buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        with reached():
            return self._out.write(memoryview(data).cast("B"))  # an Arrow buffer's bytes are signed, which the store refuses

    def close(self) -> None:
        if not self.closed:
            super().close()
            with reached():
                self._out.close()


class ObjectFileSystem(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow is untyped
    """Handler of a :class:`pyarrow.fs.PyFileSystem` over :class:`~mirror_pipeline.buffer.place.bucket.Objects`."""

    def __init__(self, uri: str, options: Options) -> None:
        self._objects = Objects(uri, options)

    def get_type_name(self) -> str:
        return "mirror-objects"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        entry = self._objects.look(path)
        if entry is None:
            return fs.FileInfo(path, fs.FileType.NotFound)
        return fs.FileInfo(path, fs.FileType.File, size=entry.size, mtime=datetime.fromtimestamp(entry.modified, UTC))

    def delete_file(self, path: str) -> None:
        with reached():
            obstore.delete(self._objects.store, self._objects.key(path))

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(_Reader(self._objects, path), mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        return pa.PythonFile(_ObjectWriter(self._objects, path), mode="w")

    def _refuse(self, *arguments: object) -> None:
        raise NotImplementedError("the buffer does not need this")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = move = copy_file = open_append_stream = _refuse
    get_file_info_selector = _refuse
