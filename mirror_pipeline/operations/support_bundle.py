"""``support-bundle``: what somebody needs who is to help, in one archive without secrets."""

from __future__ import annotations

import base64
import io
import json
import platform
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from mirror_pipeline import __version__
from mirror_pipeline.buffer.place.lane_file import STATUS
from mirror_pipeline.buffer.place.place import find_lanes
from mirror_pipeline.config import Config
from mirror_pipeline.config.secrets import SecretRef
from mirror_pipeline.errors import ConfigError, MirrorError, UsageError
from mirror_pipeline.files import replace_file

# Of each log file, from its end.
LOG_BYTES = 2 << 20
LEAST_SECRET = 6  # shorter parts of an address are words, not secrets
HIDDEN = "<hidden>"

Parts = dict[str, Callable[[], Any]]


def support_bundle(config: Config, parts: Parts, out: Path) -> list[str]:
    """Write the archive; returns what is in it.

    Args:
        config: whose settings and logs.
        parts: further documents by name: functions of what is written as JSON. One that fails is there with its error.
        out: the archive; only this user may read it.

    Raises:
        UsageError: the archive cannot be written.
    """
    hide = Redactor(config)
    made: dict[str, str] = {}
    for name, make in {"versions": _versions, "settings": lambda: _settings(config), **parts}.items():
        try:
            found = make()
        except MirrorError as error:
            found = {"error": str(error)}
        made[f"{name}.json"] = json.dumps(found, indent=1, default=str)
    made |= dict(_lane_files(config)) | dict(_logs(config.state_folder))
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, text in made.items():
            data = hide(text).encode()
            entry = tarfile.TarInfo(f"{out.name.partition('.')[0]}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))
    try:
        replace_file(out, written.getvalue())
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}", hint="name another file with --out") from error
    return list(made)


class Redactor:
    """Hides every secret of a configuration in a text, also as it looks in JSON, in an address and in base64."""

    def __init__(self, config: Config) -> None:
        secrets = {value for reference in _references(config) if (value := _value(reference))}
        for url in config.notify.urls:
            secrets |= _parts_of(url if isinstance(url, str) else _value(url))
        users = [name for cluster in config.clusters.values() if (name := cluster.security.username)]
        names = [name if isinstance(name, str) else _value(name) for name in users]
        forms = {form for secret in secrets for form in _forms(secret, names)}
        self._forms = sorted((form for form in forms if form), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text


def _references(value: Any) -> Iterator[SecretRef]:
    if isinstance(value, SecretRef):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _references(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _references(each)


def _value(reference: SecretRef) -> str:
    """The secret as it is here; "" where it is not set, so that nothing here can show it."""
    try:
        return reference.resolve()
    except ConfigError:
        return ""


def _parts_of(url: str) -> set[str]:
    """An address to send messages to is a secret, and so are its longer parts: they stand alone in logs of libraries."""
    found = urlsplit(url)
    parts = {*found.path.split("/"), *found.query.replace("&", "=").split("="), found.password or "", found.username or ""}
    return {url, *(part for part in parts if len(part) >= LEAST_SECRET)}


def _forms(secret: str, names: list[str]) -> set[str]:
    plain = {secret, *(f"{name}:{secret}" for name in names), *(f"\0{name}\0{secret}" for name in names)}
    encoded = {base64.b64encode(each.encode()).decode() for each in plain}
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], *encoded, *(each.rstrip("=") for each in encoded)}


def _settings(config: Config) -> Any:
    """What mirror.yaml means here, defaults included. Its comments are left out: nobody knows what they hold."""
    addresses = tuple(f"{urlsplit(url).scheme}://{HIDDEN}" if isinstance(url, str) else url for url in config.notify.urls)
    return _plain(replace(config, notify=replace(config.notify, urls=addresses)))


def _plain(value: Any) -> Any:
    if isinstance(value, SecretRef):
        return str(value)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value.value if isinstance(value, Enum) else value)


def _versions() -> Any:
    packages = {each.metadata["Name"]: each.version for each in distributions()}
    machine = {"python": platform.python_version(), "platform": platform.platform()}
    return {"version": __version__, **machine, "packages": dict(sorted(packages.items()))}


def _lane_files(config: Config) -> Iterator[tuple[str, str]]:
    for mirror in config.mirrors:
        try:
            for store in find_lanes(config.buffer, mirror.name):
                found = store.read_file(STATUS)
                if found is not None:
                    yield f"{mirror.name}/{store.lane}.json", found.decode(errors="replace")
        except MirrorError as error:
            yield f"{mirror.name}/lanes.txt", str(error)


def _logs(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.log*")):
        if path.is_file():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LOG_BYTES))
                yield f"logs/{path.relative_to(folder)}", file.read().decode(errors="replace")
