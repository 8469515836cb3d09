"""A page's address, its token, which is in a file that only the owner can read, and who may use it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from mirror_pipeline.config import Config
from mirror_pipeline.errors import UsageError
from mirror_pipeline.files import replace_file
from mirror_pipeline.host import user_name
from mirror_pipeline.page.gate import ANY_ADDRESS, GateRules, User, is_loopback

TOKEN_ENV = "MIRROR_UP_TOKEN"  # noqa: S105 - a name
TOKEN_FILE_ENV = "MIRROR_UP_TOKEN_FILE"  # noqa: S105 - a name
UP_TOKEN = "up.token"  # noqa: S105 - a name
# Characters: a shorter token could be guessed by trying.
SHORTEST = 16


def make_token() -> str:
    """``$MIRROR_UP_TOKEN``, else 256 random bits.

    Raises:
        UsageError: the environment's token is too short, or has characters that need quoting in a URL.
    """
    configured = os.environ.get(TOKEN_ENV, "")
    plain = configured.isascii() and configured.replace("-", "").replace("_", "").isalnum()
    if configured and (len(configured) < SHORTEST or not plain):
        raise UsageError(
            f"{TOKEN_ENV}: a token has at least {SHORTEST} letters, digits, - or _", hint="unset it: each start then generates a token"
        )
    return configured or secrets.token_urlsafe(32)


def write_token(home: Path, token: str | None) -> Path:
    """Write the token file (mode 0600) for programs of this user; None removes it. The token is in no environment or command line."""
    path = home / UP_TOKEN
    if token is None:
        path.unlink(missing_ok=True)
    else:
        replace_file(path, token + "\n")
    return path


def known_token() -> str | None:
    """The token of the web server that the environment names, None when it names none."""
    path = os.environ.get(TOKEN_FILE_ENV, "")
    try:
        token = Path(path).read_text().strip() if path else ""
    except OSError:
        token = ""
    return token or os.environ.get(TOKEN_ENV) or None


def rules_of(config: Config, host: str, port: int, token: str | None, allow_hosts: Sequence[str] = ()) -> GateRules:
    """Who gets in: the owner, and the users of mirror.yaml.

    Raises:
        ConfigError: a user's token cannot be read.
        UsageError: it is too short, or somebody else's too.
    """
    named = {user.name: User(user.name, change=user.role == "change") for user in config.page.users}
    users: dict[str, User] = {}
    for user in config.page.users:
        if user.token is not None:
            theirs = user.token.resolve()
            if len(theirs) < SHORTEST or theirs in (token, *users):
                raise UsageError(f"page.users: the token of {user.name} needs {SHORTEST} characters or more, and to be nobody else's")
            users[theirs] = named[user.name]
    owner = User(user_name(), change=True)
    return GateRules(host, port, token, tuple(allow_hosts), owner, users, named, config.page.user_header.lower())


def address(host: str, port: int) -> str:
    """The URL of the page for programs and browsers on this machine."""
    name = "127.0.0.1" if host in ANY_ADDRESS else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"


def warning(host: str, with_token: bool) -> str:
    """The risk of listening on ``host`` with or without a token; "" if there is none."""
    if is_loopback(host):
        return "" if with_token else "no token: every user and every program on this machine can start and stop runs"
    if with_token:
        return f"the page listens on {host} without TLS: the token can be read on the network; put a proxy with TLS in front of it"
    return f"WARNING: no token, and the page listens on {host}: anyone who can reach it can read all it shows, start runs and stop them"
