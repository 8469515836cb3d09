"""Objects in a bucket of an S3-compatible store: the one place that says how such a store is reached.

What is set comes from the environment, by the names every AWS program knows: ``AWS_ENDPOINT_URL``, ``AWS_REGION``,
``AWS_ALLOW_HTTP``, ``AWS_ACCESS_KEY_ID`` and so on. Both libraries that talk to the store, obstore here and deltalake for the tables,
read it themselves. What is no secret also travels with the lane to other machines; secrets never do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError, PreconditionError
from obstore.store import S3Store

from mirror_pipeline.errors import BufferUnusable, UsageError

Options = tuple[tuple[str, str], ...]
# Settings without secrets: tasks on other machines get them from the driver.
CARRIED_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
ALLOW_HTTP = "AWS_ALLOW_HTTP"  # obstore takes it as a property of the connection
CONNECT_SECONDS, REQUEST_SECONDS = 5, 30
# A store that does not answer is reported after this; the lane then waits by its own rules, and says so.
RETRIES, STORE_RETRY_SECONDS = 5, 20
# A larger file is uploaded in parts of this size; this many are in memory.
PART_BYTES, PARTS_AT_ONCE = 8 * 2**20, 4
_URI = re.compile(r"s3://([^/]+)/*(.*?)/*")


class StoreError(OSError):
    """An error of the store or of the connection to it, in one line."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object's content and its ETag."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of a listing; ``name`` counts from the place that was listed, ``modified`` is the store's time in seconds."""

    name: str
    size: int
    modified: float


def carried_options() -> Options:
    """What tasks on other machines must know of this machine's environment."""
    return tuple((name, os.environ[name]) for name in CARRIED_VARIABLES if os.environ.get(name))


def delta_options(options: Options) -> dict[str, str]:
    """The same for ``deltalake``."""
    return {
        **dict(options),
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "timeout": f"{REQUEST_SECONDS}s",
        "max_retries": str(RETRIES),
        "retry_timeout": f"{STORE_RETRY_SECONDS}s",
    }


@lru_cache(maxsize=16)
def _bucket(name: str, options: Options, seconds: float) -> S3Store:
    given = dict(options)
    client: Any = {"connect_timeout": timedelta(seconds=CONNECT_SECONDS), "timeout": timedelta(seconds=seconds)}
    if given.pop(ALLOW_HTTP, os.environ.get(ALLOW_HTTP, "")).lower() in ("true", "1"):
        client["allow_http"] = True
    config: Any = {key.lower(): value for key, value in given.items()}
    retry: Any = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=min(seconds, STORE_RETRY_SECONDS))}
    return S3Store(name, config=config, client_options=client, retry_config=retry)


@contextmanager
def reached() -> Iterator[None]:
    """Raise :class:`StoreError` for whatever obstore raises inside; an object that is not there stays FileNotFoundError."""
    try:
        yield
    except BaseError as error:
        raise StoreError(str(error).partition("\n\nDebug source")[0]) from error


def _listed(meta: Any, name: str) -> Listed:
    return Listed(name, meta["size"], meta["last_modified"].timestamp())


class Objects:
    """The objects below one ``s3://bucket/prefix``. Names are relative to it; all methods raise :class:`StoreError`.

    Args:
        uri: the place.
        options: settings that were carried here (:func:`carried_options`).
        seconds: how long one request may take.

    Raises:
        UsageError: the URI names no bucket.
    """

    def __init__(self, uri: str, options: Options, *, seconds: float = REQUEST_SECONDS) -> None:
        match = _URI.fullmatch(uri)
        if match is None:
            raise UsageError(f"buffer {uri}: contains no bucket name", hint="write s3://bucket/prefix")
        self.uri = uri
        self.prefix = match.group(2)
        self.store = _bucket(match.group(1), options, seconds)

    def key(self, name: str) -> str:
        """The object's whole key."""
        return f"{self.prefix}/{name}" if self.prefix and name else self.prefix or name

    def read(self, name: str) -> Found | None:
        """An object as it is now; None when there is none."""
        try:
            with reached():
                answer = obstore.get(self.store, self.key(name))
                return Found(bytes(answer.bytes()), answer.meta["e_tag"] or "")
        except FileNotFoundError:
            return None

    def look(self, name: str) -> Listed | None:
        """Size and time of an object; None when there is none."""
        try:
            with reached():
                return _listed(obstore.head(self.store, self.key(name)), name)
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Put an object, whatever is there: a reader sees the old one or the new one."""
        with reached():
            obstore.put(self.store, self.key(name), data)

    def create(self, name: str, data: bytes) -> str | None:
        """Put an object where none is (``If-None-Match: *``); its ETag, or None when there is one."""
        return self._put_if(name, data, "create")

    def replace(self, name: str, data: bytes, etag: str) -> str | None:
        """Put an object in the place of the one with this ETag (``If-Match``); the new ETag, or None when another one, or none, is there.

        ETags follow from the content: a write that must be noticed needs different content each time.
        """
        return self._put_if(name, data, {"e_tag": etag})

    def _put_if(self, name: str, data: bytes, mode: Any) -> str | None:
        try:
            with reached():
                return obstore.put(self.store, self.key(name), data, mode=mode, use_multipart=False)["e_tag"]
        except StoreError as error:
            if isinstance(error.__cause__, AlreadyExistsError | PreconditionError):
                return None
            raise

    def listed(self, folder: str = "") -> list[Listed]:
        """Every object below a folder, the folders in it included."""
        base = self.key(folder)
        with reached():
            objects = [each for page in obstore.list(self.store, prefix=base, chunk_size=1000) for each in page]
        skip = len(base) + 1 if base else 0
        return [_listed(each, each["path"][skip:]) for each in objects]

    def entries(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Names of the folders, and of the objects, directly in a folder."""
        base = self.key(folder)
        with reached():
            page = obstore.list_with_delimiter(self.store, base)
        skip = len(base) + 1 if base else 0
        return [path[skip:] for path in page["common_prefixes"]], [each["path"][skip:] for each in page["objects"]]

    def refuse_unconditional(self, name: str, data: bytes) -> None:
        """See that the store keeps to the conditions of a put; ``name`` must exist with this content, and keeps it.

        Raises:
            BufferUnusable: it overwrites an object although the request forbids that.
        """
        try:
            honest = self.create(name, data) is None and self.replace(name, data, '"no-such-etag"') is None
        except StoreError as error:
            if not isinstance(error.__cause__, NotSupportedError) and "NotImplemented" not in str(error):
                raise
            honest = False
        if not honest:
            raise BufferUnusable(
                f"buffer {self.uri}: the object store does not honour conditional puts (If-None-Match, If-Match)",
                hint="without them two runs could hold one lane: use another store",
            )
