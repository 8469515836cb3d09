"""The web page of ``mirror up``: its address, and its token, which lies in a file that only its owner reads."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from mirror_pipeline.errors import UsageError
from mirror_pipeline.files import replace_file
from mirror_pipeline.orchestration.up.gate import ANY_ADDRESS, is_loopback

TOKEN_ENV = "MIRROR_UP_TOKEN"  # noqa: S105 - a name
TOKEN_FILE_ENV = "MIRROR_UP_TOKEN_FILE"  # noqa: S105 - a name
FILE = "up.token"
SHORTEST = 16
"""Characters: below that it could be guessed by trying."""


def make_token() -> str:
    """``$MIRROR_UP_TOKEN``, else 256 random bits.

    Raises:
        UsageError: the one of the environment is too short, or has characters that an address cannot hold as they are.
    """
    given = os.environ.get(TOKEN_ENV, "")
    if given and (len(given) < SHORTEST or not given.isascii() or not given.replace("-", "").replace("_", "").isalnum()):
        raise UsageError(
            f"{TOKEN_ENV}: a token has at least {SHORTEST} letters, digits, - or _", hint="unset it, and each start makes its own"
        )
    return given or secrets.token_urlsafe(32)


def keep_token(home: Path, token: str | None) -> Path:
    """Write it where our own programs find it, mode 0600; None removes an old one. Never in an environment or on a command line."""
    path = home / FILE
    if token is None:
        path.unlink(missing_ok=True)
    else:
        replace_file(path, token + "\n")
    return path


def known_token() -> str | None:
    """The token of the web server that the environment names, None when it names none."""
    path = os.environ.get(TOKEN_FILE_ENV, "")
    try:
        kept = Path(path).read_text().strip() if path else ""
    except OSError:
        kept = ""
    return kept or os.environ.get(TOKEN_ENV) or None


def address(host: str, port: int) -> str:
    """Where programs and browsers of this machine find the page."""
    name = "127.0.0.1" if host in ANY_ADDRESS else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"


def warning(host: str, with_token: bool) -> str:
    """What whoever starts the page so should know; "" when there is nothing to say."""
    if is_loopback(host):
        return "" if with_token else "no token: every user and every program of this machine can start and stop runs"
    if with_token:
        return f"the page listens on {host} without TLS: the token can be read on the network; put a proxy with TLS in front of it"
    return f"WARNING: no token, and the page listens on {host}: whoever reaches it can read all it shows, start runs and stop them"
