"""References to secrets. A value is looked up when a connection is opened and is not kept."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from mirror_pipeline.errors import ConfigError
from mirror_pipeline.host import expanded

REFERENCE = re.compile(r"\$\{(env|file):([^{}]+)\}")
ENVIRONMENT = re.compile(r"\$\{env:([^{}]+)\}")
SECRET_KEY = re.compile(r"password|passwd|secret|token|credential|jaas|private|key\.pem|access\.?key", re.IGNORECASE)
HOW = "write ${env:NAME} or ${file:path}, and keep the value out of the file"


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Where a secret is stored: ``${env:NAME}`` or ``${file:path}``.

    Only the reference is stored, so it may be printed, pickled and sent into Spark tasks; the value exists
    from :meth:`resolve` to the end of the call that needs it. ``where`` is the line and key of mirror.yaml.
    """

    reference: str
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        # The message must not repeat the text: a password typed in by mistake would be quoted.
        if not REFERENCE.fullmatch(self.reference):
            raise ConfigError(f"{self._prefix()}a secret must be a reference", hint=HOW)

    def __str__(self) -> str:
        return self.reference

    def __repr__(self) -> str:
        return f"SecretRef({self.reference!r})"

    def resolve(self) -> str:
        """The value, read now from the environment or the file (one trailing newline is dropped).

        Raises:
            ConfigError: the variable is unset or empty, or the file cannot be read or is empty.
        """
        match = REFERENCE.fullmatch(self.reference)
        kind, name = match.groups() if match else ("", "")
        return self._from_environment(name) if kind == "env" else self._from_file(name)

    def _from_environment(self, name: str) -> str:
        value = os.environ.get(name, "")
        if not value:
            raise ConfigError(f"{self._prefix()}environment variable {name} is not set", hint=f"export {name}, then start again")
        return value

    def _from_file(self, name: str) -> str:
        try:
            value = expanded(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(f"{self._prefix()}secret file {name}: {reason}", hint="create it, readable for this user") from None
        value = value.removesuffix("\n").removesuffix("\r")
        if not value:
            raise ConfigError(f"{self._prefix()}secret file {name} is empty", hint="put the secret on its first line")
        return value

    def _prefix(self) -> str:
        return f"{self.where}: " if self.where else ""


def resolved(value: str | SecretRef) -> str:
    """A text that is written out, or the value of a reference now. Raises ConfigError as :meth:`SecretRef.resolve` does."""
    return value.resolve() if isinstance(value, SecretRef) else value


def secret_ref(text: str, folder: Path, where: str) -> SecretRef:
    """A reference as written in mirror.yaml; file paths count from that file's folder."""
    match = REFERENCE.fullmatch(text)
    if match and match.group(1) == "file":
        return SecretRef(f"${{file:{folder / expanded(match.group(2))}}}", where)
    return SecretRef(text, where)


def substitute(text: str) -> str:
    """Replace each ``${env:NAME}`` by its value now (for addresses, not for secrets).

    Raises:
        ValueError: a variable is unset or empty; the message names it.
    """

    def value(match: re.Match[str]) -> str:
        content = os.environ.get(match.group(1), "")
        if not content:
            raise ValueError(f"environment variable {match.group(1)} is not set; export it or write the value here")
        return content

    return ENVIRONMENT.sub(value, text)
