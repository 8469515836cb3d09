"""An S3 server as a process of its own on loopback, whose objects outlive it: for tests that need an object store.

It is MiniStack (PyPI). Chosen because its conditional puts are strict: each request is handled as a whole on one event loop, and
``test_conditional_puts_are_strict`` races for it. S3Proxy 4.0 lets several writers through an ``If-Match`` (it looks, then
writes), moto keeps its objects in memory only. MiniStack checks no signatures: ``tests/unit/buffer/place/test_bucket.py`` has what servers
answer that do.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from mirror_pipeline.local.embedded.ports import free_port, is_listening

START_SECONDS = 30.0
BUCKET = "mirror-test"


class ObjectStore:
    """One server; objects lie below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()
        self._create_bucket()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """What a mirror's process needs in its environment."""
        return environment(self.endpoint)

    def start(self) -> None:
        """Start it, again on the same objects."""
        extra = {"S3_PERSIST": "1", "S3_DATA_DIR": str(self.folder), "SERVICES": "s3"}
        extra |= {"GATEWAY_PORT": str(self.port), "BIND_HOST": "127.0.0.1"}
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ministack"], env={**os.environ, **extra}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not is_listening(self.port):
            assert self.process.poll() is None, "the object store did not start"
            assert time.monotonic() < deadline, "the object store does not answer"
            time.sleep(0.05)

    def _create_bucket(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        connection.close()

    def kill(self) -> None:
        """``kill -9``."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def keys(self, prefix: str) -> list[str]:
        """The keys below a prefix."""
        return [each["path"] for page in obstore.list(self.bucket(), prefix=prefix) for each in page]

    def bucket(self) -> S3Store:
        """The bucket, to look at it and to damage it."""
        keys: dict[str, Any] = {"access_key_id": "test", "secret_access_key": "test"}
        return S3Store(BUCKET, endpoint=self.endpoint, region="us-east-1", client_options={"allow_http": True}, **keys)


def environment(endpoint: str) -> dict[str, str]:
    """What names a store for a mirror."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
