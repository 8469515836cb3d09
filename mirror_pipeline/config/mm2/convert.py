"""The whole property file as a mirror.yaml, with the outcome of every key."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from mirror_pipeline.config.mm2.cluster_block import ClusterBlock, alias_in_yaml
from mirror_pipeline.config.mm2.key_table import CARRIED, CHANGED, CONNECT_KEYS
from mirror_pipeline.config.mm2.leftovers import note_leftovers
from mirror_pipeline.config.mm2.mirror_block import MirrorBlock
from mirror_pipeline.config.mm2.properties_file import parse
from mirror_pipeline.config.mm2.scoped_keys import FlowName, ScopedKeys, scoped
from mirror_pipeline.errors import ConfigError
from mirror_pipeline.reports import ImportedKey

_HEAD = """\
# mirror.yaml, made from {properties} of MirrorMaker 2. Every key: docs/configuration.md
# Next: `mirror check` tries the connections, `mirror plan` shows what would be copied. Topics that MirrorMaker has copied: `mirror adopt`.

"""
_BUFFER = {"uri": "./mirror_buffer", "retention": "24h", "max_bytes": "50GB"}


@dataclass(frozen=True, slots=True)
class Converted:
    """Text of mirror.yaml, the mirrors' names, the outcome of every key, and what the text refers to."""

    text: str
    mirrors: tuple[str, ...]
    keys: tuple[ImportedKey, ...]
    secrets: dict[str, str]


def convert(text: str, shown: str, folder: Path) -> Converted:
    """Convert the text of a property file.

    Args:
        text: of the file.
        shown: the file's name in messages.
        folder: from which relative paths of certificates count.

    Raises:
        ConfigError: one line ``file:line: key: what is wrong`` for each thing that makes the file unusable.
    """
    try:
        keys = scoped(parse(text))
    except ValueError as error:
        raise ConfigError(f"{shown}: {error}") from None
    flows = _enabled(keys)
    used = [alias for alias in keys.clusters if any(alias in (flow.source, flow.target) for flow in flows)]
    _check_names(keys, used)
    clusters = {alias_in_yaml(alias): ClusterBlock(alias, keys, folder).build() for alias in used}
    blocks = [MirrorBlock(flow, keys) for flow in flows]
    mirrors = [block.build() for block in blocks]
    _check_loops(keys, blocks)
    note_leftovers(keys, flows, set(used))
    if keys.problems:
        lines = sorted(set(keys.problems))
        raise ConfigError("\n".join(f"{shown}:{line}: {key + ': ' if key else ''}{message}" for line, key, message in lines))
    document = {"clusters": clusters, "mirrors": mirrors, "buffer": _BUFFER}
    head = _HEAD.format(properties=Path(shown).name)
    return Converted(head + _yaml(document), tuple(block.name for block in blocks), _rows(keys), dict(keys.secrets))


def _yaml(document: dict[str, Any]) -> str:
    return str(yaml.safe_dump(document, sort_keys=False, width=140, allow_unicode=True))


def _enabled(keys: ScopedKeys) -> list[FlowName]:
    entry = keys.top.get("clusters")
    if entry is None:
        connect = next((keys.top[key] for key in CONNECT_KEYS if key in keys.top), None)
        why = "is missing" if connect is None else "is missing: the file describes a Connect connector, not MirrorMaker's dedicated mode"
        keys.problems.append((1 if connect is None else connect.line, "clusters", why))
        return []
    keys.note(entry, CARRIED, "clusters")
    twice = [alias for alias, number in Counter(keys.clusters).items() if number > 1 or not alias]
    if twice:
        keys.problem(entry, f'"{twice[0]}" is listed twice' if twice[0] else "has an empty entry")
    flows = []
    for name, part in keys.by_flow.items():
        flag = part.get("enabled")
        if flag is None:
            continue
        if flag.value.lower() not in ("true", "false"):
            keys.problem(flag, "must be true or false")
        elif name.source == name.target:
            keys.problem(flag, "source and target are the same cluster")
        elif flag.value.lower() == "true":
            flows.append(name)
            keys.note(flag, CARRIED, f"mirror {MirrorBlock(name, keys).name}")
    if not flows and not any(key.endswith("enabled") for _, key, _ in keys.problems):
        pair = "->".join((*keys.clusters, "A", "B")[:2]) if len(keys.clusters) > 1 else "A->B"
        keys.problem(entry, f"no flow is enabled: nothing is copied; write {pair}.enabled=true")
    return flows


def _check_names(keys: ScopedKeys, used: list[str]) -> None:
    for alias, number in Counter(alias_in_yaml(alias).lower().replace("-", "_") for alias in used).items():
        if number > 1:
            keys.problem(keys.top["clusters"], f'two aliases would both be "{alias}" in mirror.yaml; rename one')


def _check_loops(keys: ScopedKeys, blocks: list[MirrorBlock]) -> None:
    """Names that stay the same in both directions: each side would copy the other's copies."""
    ways = {block.flow: block for block in blocks}
    for flow, block in ways.items():
        back = FlowName(flow.target, flow.source)
        if back in ways and block.naming() == "identity":
            policy = keys.flow(flow, "replication.policy.class")
            assert policy is not None  # noqa: S101 - identity is not the default
            both = f"{flow} keeps names and {back} is enabled: records would go round in circles"
            keys.problem(policy, f"{both}; disable one of the two (reverse_of is for failback, see docs/failover.md)")


def _rows(keys: ScopedKeys) -> tuple[ImportedKey, ...]:
    """Every key in the order of the file, then the defaults."""
    everywhere = {entry.key for entry in keys.top.values()}
    rows = [_general(row) if row.key in everywhere else row for row in keys.rows.values()]
    for alias in keys.clusters:
        name = alias_in_yaml(alias)
        if name != alias and rows:
            why = f'aliases hold letters, digits, _ and -; topics keep the prefix "{alias}"'
            rows.append(ImportedKey(f"clusters: {alias}", keys.top["clusters"].line, alias, CHANGED.value, name, why))
    return (*sorted(rows, key=lambda row: (row.line or 0, row.key)), *keys.defaults)


def _general(row: ImportedKey) -> ImportedKey:
    """A key for all clusters or flows names none of them."""
    return replace(
        row, became=re.sub(r"^clusters\.[^.]+\.|^[\w-]+: ", lambda m: "clusters.*." if m[0].startswith("clusters.") else "", row.became)
    )
