"""Checks of several keys together, or that a schema cannot express."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from mirror_pipeline.config.models import BufferModel, ClusterModel, SecurityModel
from mirror_pipeline.config.problems import Problems, part_of
from mirror_pipeline.config.secrets import HOW, REFERENCE, SECRET_KEY
from mirror_pipeline.config.settings import BATCHES_IN_BUFFER, nearest
from mirror_pipeline.config.yaml_lines import Path
from mirror_pipeline.host import expanded
from mirror_pipeline.units import format_size, parse_size

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)
_REFERENCE_START = re.compile(r"\$\{(env|file):")
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/[A-Za-z0-9._-]+)*/?", re.ASCII)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_OWN_CLIENT_KEYS = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "security.protocol": "security.protocol",
    "sasl.mechanism": "security.mechanism",
    "sasl.mechanisms": "security.mechanism",
    "sasl.username": "security.username",
    "sasl.password": "security.password",
    "ssl.ca.location": "security.ca_file",
    "ssl.ca.pem": "security.ca_file",
    "ssl.certificate.location": "security.cert_file",
    "ssl.certificate.pem": "security.cert_file",
    "ssl.key.location": "security.key_file",
    "ssl.key.pem": "security.key_file",
    "ssl.key.password": "security.key_password",
    "ssl.endpoint.identification.algorithm": "security.verify_hostname",
    "enable.ssl.certificate.verification": "security.ca_file",
}


def may_hold_reference(path: Path) -> bool:
    """Whether ``${env:..}`` or ``${file:..}`` means something at this key."""
    if path[:1] == ("clusters",):
        login = (("security", "username"), ("security", "password"), ("security", "key_password"))
        return path[2:] in login or path[2:3] in (("client",), ("bootstrap_servers",))
    return path == ("buffer", "uri") or path[:2] == ("notify", "urls") or (path[:2] == ("page", "users") and path[-1] == "token")


def check_references(data: object, problems: Problems) -> None:
    """A reference at a key where nothing replaces it would silently be taken as text."""
    for path, text in _texts(data, ()):
        if _REFERENCE_START.search(text) and not may_hold_reference(path):
            where = "user names, passwords, client, bootstrap_servers, buffer.uri, notify.urls and page.users"
            problems.add(path, f"${{...}} is not replaced here; it is in {where}")


def _texts(data: object, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _texts(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _texts(value, (*path, index))


def check_cluster(alias: Any, cluster: ClusterModel, folder: FilePath, problems: Problems) -> None:
    """Alias, security block and client properties of one cluster."""
    base: Path = ("clusters", alias)
    _check_security(cluster.security, (*base, "security"), folder, problems)
    for key, value in cluster.client.items():
        where: Path = (*base, "client", key)
        own = _OWN_CLIENT_KEYS.get(key)
        if own or key.startswith("sasl."):
            problems.add(where, f"write it as {own}: both client stacks need it" if own else "SASL settings belong in security")
        elif SECRET_KEY.search(key) and not REFERENCE.fullmatch(value):
            problems.add(where, f"a secret must not be written here; {HOW}")
        elif _REFERENCE_START.search(value) and not REFERENCE.fullmatch(value):
            problems.add(where, "a reference must be the whole value")


def check_name(path: Path, name: object, what: str, problems: Problems) -> None:
    """Aliases and mirror names become parts of topic, folder and asset names."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        problems.add(path, f"a {what} is made of letters, digits, _ and -, at most 63; put it in quotes if it is a number")


def _check_security(security: SecurityModel, base: Path, folder: FilePath, problems: Problems) -> None:
    protocol = security.protocol
    sasl = {"mechanism": security.mechanism, "username": security.username, "password": security.password}
    for key, value in sasl.items():
        if protocol.startswith("SASL_") and not value:
            problems.add((*base, key), f"is missing; protocol {protocol} needs it")
        elif not protocol.startswith("SASL_") and value is not None:
            problems.add((*base, key), _no_effect(protocol, "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT"))
    if _REFERENCE_START.search(security.username or "") and not REFERENCE.fullmatch(security.username or ""):
        problems.add((*base, "username"), "a reference must be the whole value")
    if security.mechanism == "PLAIN" and protocol == "SASL_PLAINTEXT":
        problems.add((*base, "mechanism"), "PLAIN would send the password unencrypted; use protocol SASL_SSL, or SCRAM-SHA-512")
    for key, value in {"ca_file": security.ca_file, "cert_file": security.cert_file, "key_file": security.key_file}.items():
        if value is not None and not protocol.endswith("SSL"):
            problems.add((*base, key), _no_effect(protocol, "SASL_SSL" if protocol.startswith("SASL") else "SSL"))
        elif value is not None and not (folder / expanded(value)).is_file():
            problems.add((*base, key), f"no such file: {folder / expanded(value)}")
    if (security.cert_file is None) != (security.key_file is None):
        have, lack = ("key_file", "cert_file") if security.cert_file is None else ("cert_file", "key_file")
        problems.add((*base, have), f"also requires {lack}")
    if security.key_password is not None and security.key_file is None:
        problems.add((*base, "key_password"), "also requires key_file")
    if not security.verify_hostname and not protocol.endswith("SSL"):
        problems.add((*base, "verify_hostname"), f"has no effect with protocol {protocol}")


def _no_effect(protocol: str, better: str) -> str:
    return f"has no effect with protocol {protocol}; did you mean protocol: {better}?"


def check_mirror(index: int, raw: object, aliases: list[str], problems: Problems) -> None:
    """One mirror against the clusters, and what this release cannot do yet.

    ``raw`` is the parsed YAML: these checks also run when another key of the mirror is wrong.
    """
    base: Path = ("mirrors", index)
    source, target = part_of(raw, ("source",)), part_of(raw, ("target",))
    for key, alias in (("source", source), ("target", target)):
        if isinstance(alias, str) and alias not in aliases:
            problems.add((*base, key), f'no cluster "{alias}", {nearest(alias, aliases)}')
    if isinstance(source, str) and source == target:
        problems.add((*base, "target"), f'source and target are both "{source}"; a mirror needs two clusters')
    _check_sources(base, raw, aliases, problems)
    name = part_of(raw, ("name",))
    if name is not None:
        check_name((*base, "name"), name, "mirror name", problems)
    check_options(part_of(raw, ("engine", "spark")), (*base, "engine", "spark"), problems)
    topics = part_of(raw, ("topics",))
    if part_of(topics, ("on_source_delete",)) == "delete" and part_of(topics, ("manage",)) is False:
        problems.add((*base, "topics", "on_source_delete"), "delete: with manage: false the mirror may not change target topics")


def _check_sources(base: Path, raw: object, aliases: list[str], problems: Problems) -> None:
    """Copies of the source: other clusters, each once. Only where offsets are the same do they mean the same in all of them."""
    listed = part_of(raw, ("sources",))
    for number, alias in enumerate(listed if isinstance(listed, list) else ()):
        path: Path = (*base, "sources", number)
        if alias in (part_of(raw, ("source",)), part_of(raw, ("target",))):
            problems.add(path, f'"{alias}" is the mirror\'s source or target; name other clusters that hold copies of the source')
        elif alias in listed[:number]:
            problems.add(path, f'"{alias}" is there twice')
        elif isinstance(alias, str) and alias not in aliases:
            problems.add(path, f'no cluster "{alias}", {nearest(alias, aliases)}')
    if listed and part_of(raw, ("offsets",)) != "exact":
        problems.add((*base, "sources"), "needs offsets: exact, where all clusters have the same offsets")


def check_mirror_names(names: Mapping[int, str], problems: Problems) -> None:
    """Names that are equal, or that become equal where only ``_`` is allowed."""
    seen: dict[str, tuple[int, str]] = {}
    for index, name in names.items():
        key = name.replace("-", "_").lower()
        if key in seen:
            other, first = seen[key]
            like = "the same name as" if first == name else f'too similar to "{first}" of'
            problems.add(("mirrors", index, "name"), f'"{name}" is {like} {problems.where(("mirrors", other))}')
        seen.setdefault(key, (index, name))


def check_reverses(mirrors: object, problems: Problems) -> None:
    """A reverse mirror has the clusters of one other mirror the other way round; each mirror has at most one reverse."""
    rows = {index: raw for index, raw in enumerate(mirrors if isinstance(mirrors, list) else ()) if isinstance(raw, Mapping)}
    named = {str(raw.get("name")): raw for raw in rows.values()}
    taken: dict[str, int] = {}
    for index, raw in rows.items():
        wanted = raw.get("reverse_of")
        if not isinstance(wanted, str):
            continue
        path: Path = ("mirrors", index, "reverse_of")
        other = named.get(wanted)
        if other is None or other is raw:
            problems.add(path, f'no other mirror "{wanted}", {nearest(wanted, sorted(named.keys() - {str(raw.get("name"))}))}')
        elif other.get("reverse_of") is not None:
            problems.add(path, f'"{wanted}" is a reverse mirror itself; only one of the two names the other')
        elif (other.get("source"), other.get("target")) != (raw.get("target"), raw.get("source")):
            ways = f"{other.get('source')} to {other.get('target')}"
            problems.add(path, f'"{wanted}" copies from {ways}; its reverse has them the other way round')
        elif wanted in taken:
            problems.add(path, f'"{wanted}" already has a reverse mirror, {problems.where(("mirrors", taken[wanted]))}')
        if other is not None and (raw.get("offsets") == "exact") != (other.get("offsets") == "exact"):
            problems.add(path, f'"{wanted}": of a mirror and its reverse both have offsets: exact, or neither')
        taken.setdefault(wanted, index)


def check_writers(mirrors: object, problems: Problems) -> None:
    """A topic that others write too has no offsets of its own, and no group or application can be moved by them."""
    rows = [raw for raw in (mirrors if isinstance(mirrors, list) else ()) if isinstance(raw, Mapping)]
    reversed_names = {raw.get("reverse_of") for raw in rows} - {None}
    for index, raw in enumerate(mirrors if isinstance(mirrors, list) else ()):
        if not isinstance(raw, Mapping) or raw.get("writers") != "shared":
            continue
        path: Path = ("mirrors", index, "writers")
        if raw.get("offsets") == "exact":
            problems.add(path, "shared: other writers take offsets of the target, so offsets cannot be exact")
        if raw.get("groups") is not None:
            problems.add(path, "shared: a group's offset says nothing about the other writers' records; leave out groups")
        if _synced_acls(raw.get("topics")):
            problems.add(path, "shared: ACLs of several sources cannot be told apart on one topic; leave out topics.acls.sync")
        if part_of(raw, ("topics", "on_source_delete")) == "delete":
            problems.add(path, "shared: a topic that others write too must not be deleted; write topics.on_source_delete: halt or keep")
        if raw.get("reverse_of") is not None or raw.get("name") in reversed_names:
            problems.add(path, "shared: a mirror and its reverse need target topics of their own; leave out reverse_of")


def check_follow_trim(mirrors: object, problems: Problems) -> None:
    """The start of a target's log is its source's only where offsets are the same."""
    for index, raw in enumerate(mirrors if isinstance(mirrors, list) else ()):
        if isinstance(raw, Mapping) and part_of(raw, ("topics", "follow_trim")) is True and raw.get("offsets") != "exact":
            problems.add(("mirrors", index, "topics", "follow_trim"), "needs offsets: exact, where both logs have the same offsets")


def _synced_acls(topics: object) -> bool:
    acls = topics.get("acls") if isinstance(topics, Mapping) else None
    return isinstance(acls, Mapping) and acls.get("sync") is True


def check_options(options: object, path: Path, problems: Problems) -> None:
    """Spark properties are shown in Spark's own UI and logs: no secret may be among them."""
    for key in options if isinstance(options, Mapping) else ():
        if SECRET_KEY.search(str(key)):
            problems.add((*path, key), "a secret must not be written here; set it in spark-defaults.conf or the environment")


def check_buffer(buffer: BufferModel, problems: Problems) -> None:
    """A folder, or a bucket of an S3-compatible store: what is not tried is refused."""
    scheme = _SCHEME.match(buffer.uri)
    if scheme and scheme.group(1) == "s3":
        if not _BUCKET.fullmatch(buffer.uri):
            problems.add(("buffer", "uri"), "write s3://bucket/prefix, in letters, digits, . _ - and /")
    elif scheme and scheme.group(1) != "file":
        problems.add(("buffer", "uri"), f"{scheme.group(1)}:// is not supported yet; name a local or mounted folder, or s3://bucket/prefix")
    elif not buffer.uri:
        problems.add(("buffer", "uri"), "must not be empty")
    if buffer.archive is not None and buffer.archive <= buffer.retention:
        problems.add(("buffer", "archive"), "must be longer than buffer.retention: both count from when a span was staged")


def check_batches(data: object, max_bytes: int, problems: Problems) -> None:
    """A buffer that cannot take a whole micro-batch would pause forever."""
    mirrors = part_of(data, ("mirrors",))
    places: list[Path] = [("engine",), *(("mirrors", index, "engine") for index in range(len(mirrors) if isinstance(mirrors, list) else 0))]
    for place in places:
        raw = part_of(data, (*place, "micro_batch_bytes"))
        try:
            size = 0 if raw is None else parse_size(raw)
        except ValueError:
            continue  # reported by the schema
        if size * BATCHES_IN_BUFFER > max_bytes:
            most = format_size(max_bytes // BATCHES_IN_BUFFER)
            problems.add(
                (*place, "micro_batch_bytes"),
                f"the buffer must hold {BATCHES_IN_BUFFER} of them; at most {most} with this buffer.max_bytes",
            )
