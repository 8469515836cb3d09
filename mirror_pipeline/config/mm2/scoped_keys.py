"""The entries of a property file by what they belong to: a cluster, a flow, or everything; and the outcome of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mirror_pipeline.config.mm2.properties_file import Entry
from mirror_pipeline.config.secrets import SECRET_KEY
from mirror_pipeline.reports import ImportedKey, ImportOutcome

CLIENTS = ("consumer.", "producer.", "admin.")
FLOW_CLIENTS = {  # clients of a flow by the cluster that they talk to
    "source": ("consumer.", "source.consumer.", "source.admin.", "source.cluster."),
    "target": ("producer.", "target.producer.", "target.admin.", "target.cluster."),
}
ALIAS_KEYS = ("source.cluster.alias", "target.cluster.alias")
_ARROW = re.compile(r"(.+?)->(.+?)\.([a-z].*)")
_LIST = re.compile(r"\s*,\s*")


@dataclass(frozen=True, slots=True)
class FlowName:
    """Aliases of source and target, as the property file has them."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(slots=True)
class ScopedKeys:
    """The file in parts. ``rows`` grows as keys are converted; ``problems`` are (line, key, message) that end the import."""

    clusters: list[str] = field(default_factory=list)
    top: dict[str, Entry] = field(default_factory=dict)
    by_cluster: dict[str, dict[str, Entry]] = field(default_factory=dict)
    by_flow: dict[FlowName, dict[str, Entry]] = field(default_factory=dict)
    stray: list[Entry] = field(default_factory=list)
    rows: dict[Entry, ImportedKey] = field(default_factory=dict)
    defaults: list[ImportedKey] = field(default_factory=list)
    relations: list[ImportedKey] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    problems: list[tuple[int, str, str]] = field(default_factory=list)

    def problem(self, entry: Entry, message: str) -> None:
        """Note what makes the whole file unusable."""
        self.problems.append((entry.line, entry.key, message))

    def note(self, entry: Entry, outcome: ImportOutcome, became: str = "", why: str = "") -> None:
        """Set the outcome of a key; the first one stays. A value that may be secret is not kept."""
        value = "" if SECRET_KEY.search(entry.key) or not outcome.shows_value else entry.value
        self.rows.setdefault(entry, ImportedKey(entry.key, entry.line, value, outcome.value, became, why))

    def default(self, key: str, became: str, why: str) -> None:
        """Note a setting that the file leaves to MirrorMaker's default."""
        row = ImportedKey(key, None, "", ImportOutcome.DEFAULT.value, became, why)
        if row not in self.defaults:
            self.defaults.append(row)

    def related(self, entry: Entry, became: str, why: str) -> None:
        """Note a setting that follows from several flows together, beside the key's own outcome."""
        self.relations.append(ImportedKey(entry.key, entry.line, "", ImportOutcome.CHANGED.value, became, why))

    def flow(self, name: FlowName, *keys: str) -> Entry | None:
        """The entry that decides a setting of a flow: its own, else that for all flows; of several names the first that is set."""
        own = self.by_flow.get(name, {})
        return next((part[key] for part in (own, self.top) for key in keys if key in part), None)

    def entries(self) -> Iterator[Entry]:
        """Every entry once."""
        yield from self.top.values()
        for part in (*self.by_cluster.values(), *self.by_flow.values()):
            yield from part.values()
        yield from self.stray


def scoped(entries: Iterable[Entry]) -> ScopedKeys:
    """Sort entries into their scopes; unknown aliases are noted as problems."""
    keys = ScopedKeys()
    unique = _unique(entries, keys)
    keys.clusters = split_list(unique["clusters"].value) if "clusters" in unique else []
    aliases = sorted(keys.clusters, key=len, reverse=True)  # an alias may begin like another: us and us.east
    for entry in unique.values():
        flow, rest = _flow_of(entry.key, aliases)
        alias = next((alias for alias in aliases if entry.key.startswith(f"{alias}.")), None)
        if flow is not None:
            keys.by_flow.setdefault(flow, {})[rest] = entry
        elif "->" in entry.key:
            _stray(entry, keys)
        elif alias is not None and entry.key not in ALIAS_KEYS:  # a cluster may be called source
            keys.by_cluster.setdefault(alias, {})[entry.key.removeprefix(f"{alias}.")] = entry
        else:
            keys.top[entry.key] = entry
    return keys


def split_list(text: str) -> list[str]:
    """A list of Kafka's configuration: parts between commas; an empty text is an empty list."""
    return _LIST.split(text.strip()) if text.strip() else []


def _unique(entries: Iterable[Entry], keys: ScopedKeys) -> dict[str, Entry]:
    """The last entry of each key, which is the one that Java takes."""
    unique: dict[str, Entry] = {}
    for entry in entries:
        earlier = unique.get(entry.key)
        unique[entry.key] = entry
        if earlier is not None and earlier.value != entry.value:
            keys.note(earlier, ImportOutcome.CHANGED, why=f"without effect: line {entry.line} counts, as in Java")
    return unique


def _flow_of(key: str, aliases: list[str]) -> tuple[FlowName | None, str]:
    for source in aliases:
        for target in aliases:
            prefix = f"{source}->{target}."
            if key.startswith(prefix):
                return FlowName(source, target), key.removeprefix(prefix)
    return None, ""


def _stray(entry: Entry, keys: ScopedKeys) -> None:
    match = _ARROW.fullmatch(entry.key)
    unknown = [alias for alias in match.groups()[:2] if alias not in keys.clusters] if match else []
    if not match or not unknown:
        why = "is not ALIAS->ALIAS.KEY"
    else:
        why = f'no cluster "{unknown[0]}": clusters lists {", ".join(keys.clusters) or "none"}'
    if match and match[3] == "enabled" and entry.value.lower() == "true":
        keys.problem(entry, why)
    keys.stray.append(entry)
    keys.note(entry, ImportOutcome.REFUSED, why=why)
