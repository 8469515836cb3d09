"""What goes wrong with a buffer's place, in one clear line: disks, permissions, object stores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.host import MORE_FILES

_FULL = ("No space left", "os error 28", "Disk quota exceeded", "os error 122", "Errno 28", "Errno 122")
_MARKS = re.compile(r"\x1b\[[0-9;]*m|↳")  # deltalake draws causes as a coloured tree
_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthorizationHeaderMalformed", "401 Unauthorized")
_NO_KEYS = ("169.254.169.254", "169.254.170.2", "instance metadata", "CredentialsNotLoaded", "no providers in chain")
_SILENT = (
    "error sending request", "onnection refused", "onnection reset", "onnection closed", "closed before message", "timed out", "dns error",
    "operation timeout", "tcp connect error", "request or response body", "SlowDown", "ServiceUnavailable", "InternalError",
    "500 Internal", "502 Bad", "503 Service", "504 Gateway", "TooManyRequests", "429 Too",
)  # fmt: skip
READ_ONLY = "other programs may read the buffer's tables, and must never rewrite them; restore what was there"
RIGHTS = "the key needs s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload on it and s3:ListBucket"


def explain(place: str, error: BaseException) -> BufferUnusable:
    """Turn an operating-system, object-store or Delta error into one clear line.

    ``retryable`` is True for what passes by itself: a full disk, which may empty again, a store that does not answer.
    """
    text = " ".join(_MARKS.sub(" ", str(error)).split())
    if any(sign in text for sign in _FULL):
        return _passing(f"buffer {place}: the disk is full", "free space, or lower buffer.max_bytes")
    if "Too many open files" in text:
        return BufferUnusable(f"buffer {place}: no more files or connections can be opened by this process", hint=MORE_FILES)
    if place.startswith("s3://") or "Generic S3 error" in text:
        return _of_the_store(place, text)
    if isinstance(error, PermissionError) or "ermission denied" in text or "Read-only file system" in text:
        return BufferUnusable(f"buffer {place}: not writable by this user", hint="change its owner or mode, or set buffer.uri")
    if isinstance(error, NotADirectoryError | FileExistsError) or "Not a directory" in text:
        return BufferUnusable(f"buffer {place}: not a directory", hint="set buffer.uri to a folder")
    return BufferUnusable(f"buffer {place}: {text[:300]}", hint="look at that folder and its disk, or set buffer.uri to another")


def _of_the_store(place: str, text: str) -> BufferUnusable:
    if "NoSuchBucket" in text:
        return BufferUnusable(f"buffer {place}: there is no such bucket", hint="create it, or set buffer.uri or AWS_ENDPOINT_URL")
    if any(sign in text for sign in _NO_KEYS):
        return BufferUnusable(f"buffer {place}: no credentials were found", hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if any(sign in text for sign in _KEYS):
        return BufferUnusable(
            f"buffer {place}: the object store refuses the credentials", hint="see AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION"
        )
    if "AccessDenied" in text or "403 Forbidden" in text:
        return BufferUnusable(f"buffer {place}: the object store refuses the permission", hint=RIGHTS)
    if "URL scheme is not allowed" in text or "BadScheme" in text or "allow_http" in text:
        return BufferUnusable(f"buffer {place}: AWS_ENDPOINT_URL is not https", hint="set AWS_ALLOW_HTTP=true if this is intended")
    if "NotImplemented" in text or "501 Not" in text:
        return BufferUnusable(f"buffer {place}: the object store does not support a required request", hint="use another store")
    if any(sign in text for sign in _SILENT):
        return _passing(f"buffer {place}: the object store does not respond", "check AWS_ENDPOINT_URL and that the store is running")
    return BufferUnusable(f"buffer {place}: {text[:300]}", hint="look at the bucket and at the store's own log")


def _passing(message: str, hint: str) -> BufferUnusable:
    error = BufferUnusable(message, hint=hint)
    error.retryable = True
    return error


@contextmanager
def explained(place: str) -> Iterator[None]:
    """Raise :class:`BufferUnusable` for any error of the operating system, the store, or of a file's content, inside."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise explain(place, error) from error
