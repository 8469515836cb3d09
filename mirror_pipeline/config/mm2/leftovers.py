"""Keys that neither a cluster nor an enabled flow has used: nothing corresponds to them, they stand in the wrong place, or are unknown."""

from __future__ import annotations

import difflib
import re

from mirror_pipeline.config.mm2.key_table import (
    CLUSTER_RULES,
    FLOW_RULES,
    IDLE_RULES,
    NOT_NEEDED,
    REFUSED,
    rule_of,
)
from mirror_pipeline.config.mm2.properties_file import Entry
from mirror_pipeline.config.mm2.scoped_keys import FlowName, ScopedKeys

_CLIENT = re.compile(r"((source|target)\.)?(consumer|producer|admin|cluster)\.(?=bootstrap|security|sasl|ssl)")
NEAR_MATCH = 0.9  # so alike that a slip of the keyboard is likelier than another tool's key
_CONVERTERS = ("key.converter", "value.converter", "header.converter")


def note_leftovers(keys: ScopedKeys, flows: list[FlowName], used: set[str]) -> None:
    """Give every key that has no outcome yet its own.

    Args:
        keys: the file.
        flows: the enabled ones.
        used: aliases of the clusters between which they copy.
    """
    for name, part in keys.by_flow.items():
        for key, entry in part.items():
            if name not in flows:
                keys.note(entry, NOT_NEEDED, why=f"the flow {name} is not enabled")
            else:
                _note(keys, entry, key, f"{name}.")
    for alias, part in keys.by_cluster.items():
        for key, entry in part.items():
            if alias not in used:
                keys.note(entry, NOT_NEEDED, why=f"no enabled flow uses cluster {alias}")
            else:
                _note(keys, entry, key, f"{alias}.")
    for key, entry in keys.top.items():
        _note(keys, entry, key, "")


def _note(keys: ScopedKeys, entry: Entry, key: str, scope: str) -> None:
    if entry in keys.rows:
        return
    shared = rule_of(_CLIENT.sub("", key), CLUSTER_RULES)
    if shared is not None and ("->" in scope or _CLIENT.match(key)):
        keys.note(entry, REFUSED, why=f"a cluster has one way to connect: write it as ALIAS.{shared.key}")
    elif shared is not None:
        keys.note(entry, shared.outcome, why=shared.why)
    elif key in _CONVERTERS and not entry.value.endswith(".ByteArrayConverter"):
        keys.note(entry, REFUSED, why="records are copied as bytes; another converter would write them differently")
    else:
        _note_rule(keys, entry, key, scope)


def _note_rule(keys: ScopedKeys, entry: Entry, key: str, scope: str) -> None:
    flow, idle = rule_of(key, FLOW_RULES), rule_of(key, IDLE_RULES)
    if flow is not None and flow.outcome is REFUSED:
        keys.note(entry, REFUSED, why=flow.why)
    elif flow is not None and scope and "->" not in scope and idle is None:
        keys.note(entry, REFUSED, why=f"is a key of a flow: write it as A->B.{key}, or as {key} for all flows")
    elif flow is not None and idle is None:
        keys.note(entry, NOT_NEEDED, why="the enabled flows have their own")
    elif idle is not None:
        keys.note(entry, NOT_NEEDED, why=idle.why)
    elif near := difflib.get_close_matches(key, _meant(scope), n=1, cutoff=NEAR_MATCH):
        keys.note(entry, REFUSED, why=f"unknown key; did you mean {scope}{near[0]}?")
    else:
        keys.note(entry, NOT_NEEDED, why="MirrorMaker ignores it: it knows no such key here")


def _meant(scope: str) -> list[str]:
    """Keys that exist in a scope and can be carried, or are known to have no effect."""
    flow = () if scope and "->" not in scope else FLOW_RULES
    cluster = () if "->" in scope else CLUSTER_RULES
    return [rule.key for rule in (*flow, *cluster, *IDLE_RULES) if "*" not in rule.key and rule.outcome is not REFUSED]
