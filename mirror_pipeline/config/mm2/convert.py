"""The whole property file as a mirror.yaml, with the outcome of every key."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from mirror_pipeline.config.mm2.cluster_block import FILL_IN, ClusterBlock, alias_in_yaml
from mirror_pipeline.config.mm2.file_kind import refuse_client_files, refuse_other_kinds, refuse_templates
from mirror_pipeline.config.mm2.key_table import CARRIED, CHANGED
from mirror_pipeline.config.mm2.leftovers import note_leftovers
from mirror_pipeline.config.mm2.mirror_block import MirrorBlock
from mirror_pipeline.config.mm2.overlap import common_name
from mirror_pipeline.config.mm2.properties_file import parse, trailing
from mirror_pipeline.config.mm2.scoped_keys import FlowName, ScopedKeys, scoped
from mirror_pipeline.errors import ConfigError
from mirror_pipeline.reports import ImportedKey, ImportOutcome

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


def convert(text: str, shown: str, folder: Path, naming: str = "") -> Converted:
    """Convert the text of a property file.

    Args:
        text: of the file.
        shown: the file's name in messages.
        folder: from which relative paths of certificates count.
        naming: names of target topics in place of what the file says; "" where the file decides.

    Raises:
        ConfigError: it is another kind of file, or a template; else one line ``file:line: key: what is wrong`` for each thing that makes
            the file unusable.
    """
    refuse_other_kinds(text, shown)
    try:
        entries = parse(text)
    except ValueError as error:
        raise ConfigError(f"{shown}: {error}") from None
    refuse_client_files(entries, shown)
    refuse_templates(entries, shown)
    keys = scoped(entries)
    flows = _enabled(keys)
    used = [alias for alias in keys.clusters if any(alias in (flow.source, flow.target) for flow in flows)]
    _check_names(keys, used)
    clusters = [ClusterBlock(alias, keys, folder) for alias in used]
    built = {alias_in_yaml(cluster.alias): cluster.build() for cluster in clusters}
    blocks = [MirrorBlock(flow, keys, naming) for flow in flows]
    mirrors = [block.build() for block in blocks]
    _relate(keys, blocks, mirrors)
    note_leftovers(keys, flows, set(used))
    if keys.problems:
        lines = sorted(set(keys.problems))
        raise ConfigError("\n".join(f"{shown}:{line}: {key + ': ' if key else ''}{message}" for line, key, message in lines))
    rows = _rows(keys)
    document = _yaml({"clusters": built, "mirrors": mirrors, "buffer": _BUFFER}, [cluster.open_login for cluster in clusters])
    return Converted(_head(shown, rows) + document, tuple(block.name for block in blocks), rows, dict(keys.secrets))


def _head(shown: str, rows: tuple[ImportedKey, ...]) -> str:
    """The comment at the top; what is left out is listed there, without values, which may be secret."""
    refused = [row for row in rows if row.outcome == ImportOutcome.REFUSED]
    lines = [f"#   {row.key} in line {row.line}: {row.why}" for row in refused]
    left_out = ["# Left out, because it is refused:", *lines, ""] if lines else []
    return _HEAD.format(properties=Path(shown).name) + "\n".join([*left_out, ""])


def _yaml(document: dict[str, Any], open_logins: list[str]) -> str:
    """The document as text; what is to be filled in says what was there."""
    reasons = iter([reason for reason in open_logins if reason])
    text = str(yaml.safe_dump(document, sort_keys=False, width=140, allow_unicode=True))
    return re.sub(rf"(?m)^ *username: {FILL_IN}$", lambda match: f"{match[0]}  # {next(reasons)}", text)


def _enabled(keys: ScopedKeys) -> list[FlowName]:
    entry = keys.top.get("clusters")
    if entry is None:
        keys.problems.append((1, "clusters", "is missing"))
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
            keys.problem(flag, f"must be true or false{trailing(flag)}")
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


def _relate(keys: ScopedKeys, blocks: list[MirrorBlock], mirrors: list[dict[str, Any]]) -> None:
    """What flows are to each other where names stay the same: a loop, or several writers of one topic."""
    pairs = list(zip(blocks, mirrors, strict=True))
    for (one, mirror), (other, second) in itertools.combinations(pairs, 2):
        if one.naming() != "identity" or other.naming() != "identity":
            continue
        topic = common_name(mirror["topics"], second["topics"])
        if topic and (one.flow.source, one.flow.target) == (other.flow.target, other.flow.source):
            both = f"{one.flow} and {other.flow} keep names and both copy e.g. {topic}: records would go round in circles"
            keys.problem(one.decides(), f"{both}; disable one of the two (reverse_of is for failback)")
        elif topic and one.flow.target == other.flow.target:
            _share(keys, one, mirror)
            _share(keys, other, second)


def _share(keys: ScopedKeys, block: MirrorBlock, mirror: dict[str, Any]) -> None:
    """Let a mirror write into topics that others write, too, as MirrorMaker does."""
    if mirror.get("writers") == "shared":
        return
    mirror["writers"] = "shared"
    why = "several flows fill the same topics"
    if mirror.pop("groups", None):
        why += "; groups are left out: an offset says nothing about the records of other writers"
    keys.related(block.decides(), f"{block.name}: writers: shared", why)


def _rows(keys: ScopedKeys) -> tuple[ImportedKey, ...]:
    """Every key in the order of the file, then the defaults."""
    everywhere = {entry.key for entry in keys.top.values()}
    rows = [_general(row) if row.key in everywhere else row for row in keys.rows.values()]
    for alias in keys.clusters:
        name = alias_in_yaml(alias)
        if name != alias and rows:
            why = f'aliases hold letters, digits, _ and -; topics keep the prefix "{alias}"'
            rows.append(ImportedKey(f"clusters: {alias}", keys.top["clusters"].line, alias, CHANGED.value, name, why))
    return (*sorted([*rows, *keys.relations], key=lambda row: (row.line or 0, row.key)), *keys.defaults)


def _general(row: ImportedKey) -> ImportedKey:
    """A key for all clusters or flows names none of them."""
    return replace(
        row, became=re.sub(r"^clusters\.[^.]+\.|^[\w-]+: ", lambda m: "clusters.*." if m[0].startswith("clusters.") else "", row.became)
    )
