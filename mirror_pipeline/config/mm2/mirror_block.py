"""One enabled flow of the property file as an entry of ``mirrors`` in mirror.yaml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mirror_pipeline.config.mm2.cluster_block import alias_in_yaml
from mirror_pipeline.config.mm2.key_table import CARRIED, CHANGED, FLOW_RULES, NOT_NEEDED, REFUSED, rule_of
from mirror_pipeline.config.mm2.name_lists import patterns
from mirror_pipeline.config.mm2.properties_file import Entry, trailing
from mirror_pipeline.config.mm2.scoped_keys import FlowName, ScopedKeys
from mirror_pipeline.config.naming import LEGAL_TOPIC

# MirrorMaker's defaults (Kafka 4, DefaultTopicFilter and DefaultGroupFilter).
TOPICS_LEFT_OUT = (r".*[\-\.]internal", r".*\.replica", "__.*")
GROUPS_LEFT_OUT = ("console-consumer-.*", "connect-.*", "__.*")
# It never copies these either, whatever the file says (MirrorSourceConnector, isInternalTopic). ``__.*`` is never copied here.
NEVER_COPIED = (r"\..*", r".*[\-\.]internal")
LONGEST_INTERVAL = 3600  # seconds, as mirror.yaml allows
# By class name, whatever the package: people copy Identity's code under other names, from before Kafka 3.0 had it.
_POLICIES = {
    "DefaultReplicationPolicy": "prefix",
    "IdentityReplicationPolicy": "identity",
    "CustomMM2ReplicationPolicy": "identity",
    "PrefixlessReplicationPolicy": "identity",
}
_KNOWN_PACKAGES = ("org.apache.kafka.connect.mirror.", "io.strimzi.kafka.connect.mirror.")
_DEFAULT_CLASSES = {
    "topic.filter.class": "org.apache.kafka.connect.mirror.DefaultTopicFilter",
    "group.filter.class": "org.apache.kafka.connect.mirror.DefaultGroupFilter",
    "config.property.filter.class": "org.apache.kafka.connect.mirror.DefaultConfigPropertyFilter",
    "forwarding.admin.class": "org.apache.kafka.clients.admin.ForwardingAdmin",
    "errors.tolerance": "none",
}


@dataclass(slots=True)
class MirrorBlock:
    """Converts the settings of one flow; outcomes are noted in ``keys``.

    Args:
        flow: aliases of its clusters.
        keys: the file.
        chosen: names of target topics, given by the user in place of what the file says; "" where the file decides.
    """

    flow: FlowName
    keys: ScopedKeys
    chosen: str = ""

    @property
    def name(self) -> str:
        """Name of the mirror."""
        return f"{alias_in_yaml(self.flow.source)}-to-{alias_in_yaml(self.flow.target)}"

    def build(self) -> dict[str, Any]:
        """The entry; what is wrong with it is noted in the keys."""
        source, target = (alias_in_yaml(alias) for alias in (self.flow.source, self.flow.target))
        block: dict[str, Any] = {"name": self.name, "source": source, "target": target}
        block["topics"] = self._topics()
        block["naming"] = self._naming()
        start = self._start()
        if start:
            block["start"] = start
        groups = self._groups()
        if groups:
            block["groups"] = groups
        self._unsupported()
        return block

    def naming(self) -> str:
        """``prefix``, ``identity`` or a template; "" for a policy that cannot be carried."""
        policy = self.keys.flow(self.flow, "replication.policy.class")
        kind = "prefix" if policy is None else _POLICIES.get(policy.value.rpartition(".")[2], "")
        if self.chosen or kind != "prefix":
            return self.chosen or kind
        alias, separator = self._alias(), self._separator()
        if not alias + separator:
            return "identity"  # how names were kept before Kafka 3.0 had IdentityReplicationPolicy
        plain = alias == alias_in_yaml(self.flow.source)
        return "prefix" if separator == "." and plain else f"{'{source}' if plain else alias}{separator}{{topic}}"

    def decides(self) -> Entry:
        """The entry that names of target topics come from, else the one that enables the flow."""
        keys = ("replication.policy.class", "replication.policy.separator", "source.cluster.alias", "enabled")
        found = next((entry for key in keys if (entry := self.keys.flow(self.flow, key)) is not None), None)
        assert found is not None  # noqa: S101 - only enabled flows become mirrors
        return found

    def _alias(self) -> str:
        """What stands before the separator: the source's alias, or what the file puts in its place."""
        entry = self.keys.flow(self.flow, "source.cluster.alias")
        return self.flow.source if entry is None else entry.value

    def _separator(self) -> str:
        entry = self.keys.flow(self.flow, "replication.policy.separator")
        return "." if entry is None else entry.value

    def _at(self, key: str) -> str:
        return f"{self.name}: {key}"

    def _carry(self, entry: Entry, key: str, why: str = "", *, changed: bool = False) -> None:
        self.keys.note(entry, CHANGED if changed else CARRIED, self._at(key), why)

    def _topics(self) -> dict[str, Any]:
        block: dict[str, Any] = {"include": self._include("topics", "topics.include")}
        entry, own = self._list("topics.exclude", "topics.blacklist", "topics.exclude")
        out = list(TOPICS_LEFT_OUT) if entry is None else own
        if entry is None:
            self.keys.default("topics.exclude", self._at("topics.exclude"), "MirrorMaker's default")
        block["exclude"] = list(dict.fromkeys([*out, *NEVER_COPIED, *self._own_topics()]))
        factor = self._number("replication.factor", least=-1)
        if factor is None:
            self.keys.default("replication.factor", "", "3 replicas, or one for each target broker; MirrorMaker makes 2")
        elif factor[1] > 0:
            block["replication_factor"] = factor[1]
            self._carry(factor[0], "topics.replication_factor")
        else:
            why = "3 replicas, or one for each target broker; write topics.replication_factor for another number"
            self.keys.note(factor[0], CHANGED, why=why)
        configs, acls = self._configs(), self._acls()
        return {**block, **({"configs": configs} if configs else {}), **({"acls": acls} if acls else {})}

    def _acls(self) -> dict[str, Any]:
        acls = self._flag("sync.topic.acls.enabled")
        if acls is None:
            why = "MirrorMaker's default is true; here ACLs are carried only with topics.acls: {sync: true}"
            self.keys.default("sync.topic.acls.enabled", "", why)
            return {}
        self._carry(acls[0], "topics.acls.sync")
        return {"sync": acls[1]}

    def _include(self, key: str, became: str) -> list[str]:
        entry = self.keys.flow(self.flow, key)
        if entry is None:
            self.keys.default(key, self._at(became), "MirrorMaker's default: .*")
            return [".*"]
        found = patterns(entry, self.keys)
        if not entry.value.strip():
            self.keys.problem(entry, "is empty: it selects nothing")
        self._carry(entry, became)
        return found

    def _list(self, key: str, old: str, became: str) -> tuple[Entry | None, list[str]]:
        """A list under its present or its old name, ``old``."""
        entry = self.keys.flow(self.flow, key, old)
        if entry is None:
            return None, []
        found = patterns(entry, self.keys)
        for scope in (self.keys.by_flow.get(self.flow, {}), self.keys.top):
            if key in scope and old in scope and scope[key].value != scope[old].value:
                self.keys.problem(scope[old], f"contradicts {scope[key].key} in line {scope[key].line}; keep one of the two")
        former = entry.key.endswith(old)
        self._carry(entry, became, "old name" if former else "", changed=former)
        return entry, found

    def _own_topics(self) -> list[str]:
        """Topics of MirrorMaker itself, and copies that came from the target: MirrorMaker would not copy those back."""
        aliases = "|".join(re.escape(alias) for alias in self.keys.clusters)
        separator = re.escape(self._separator())
        out = [f"(({aliases}){separator})*heartbeats"]
        self.keys.default("heartbeats", self._at("topics.exclude"), "topics that MirrorMaker writes for itself")
        if self.naming() not in ("identity", "") and separator:
            target = re.escape(self.flow.target)
            out.append(f"(.*{separator})?{target}{separator}.*")
            self.keys.default(
                f"{self.flow.target}{self._separator()}*", self._at("topics.exclude"), "copies from the target are not copied back"
            )
        return out

    def _configs(self) -> dict[str, Any]:
        block: dict[str, Any] = {}
        sync = self._flag("sync.topic.configs.enabled")
        if sync is not None:
            block["sync"] = sync[1]
            self._carry(sync[0], "topics.configs.sync")
        seconds = self._interval("sync.topic.configs.interval.seconds", "topics.configs.interval")
        if seconds:
            block["interval"] = seconds
        entry, out = self._list("config.properties.exclude", "config.properties.blacklist", "topics.configs.exclude")
        if entry is not None:
            block["exclude"] = out
        defaults = self.keys.by_flow.get(self.flow, {}).get("use.defaults.from")
        if defaults is not None and defaults.value in ("source", "target"):
            block["defaults_from"] = defaults.value
            self._carry(defaults, "topics.configs.defaults_from")
        elif defaults is not None:
            self.keys.problem(defaults, "must be source or target")
        if "use.defaults.from" in self.keys.top:
            entry = self.keys.top["use.defaults.from"]
            self.keys.note(entry, NOT_NEEDED, why="MirrorMaker reads it only as A->B.use.defaults.from")
        return block

    def _naming(self) -> str:
        policy = self.keys.flow(self.flow, "replication.policy.class")
        naming = self.naming()
        if policy is not None and not naming:
            why = "is Java code: which names it gives is not known; say so with --naming prefix, identity or a template"
            self.keys.note(policy, REFUSED, why=why)
        elif policy is not None:
            known = policy.value.startswith(_KNOWN_PACKAGES) and not self.chosen
            why = "--naming" if self.chosen else "" if known else "by the name of the class: check the names with mirror plan"
            self._carry(policy, f"naming: {naming}", why, changed=not known)
        self._note_parts(naming)
        return naming or "prefix"

    def _note_parts(self, naming: str) -> None:
        """The keys of which the default policy makes names; no other one reads them."""
        policy = self.keys.flow(self.flow, "replication.policy.class")
        separator, alias = (self.keys.flow(self.flow, key) for key in ("replication.policy.separator", "source.cluster.alias"))
        reads = not self.chosen and (policy is None or policy.value.endswith(".DefaultReplicationPolicy"))
        for entry in (separator, alias):
            if entry is not None and reads and entry.value and not LEGAL_TOPIC.fullmatch(entry.value):
                self.keys.problem(entry, f"is not made of characters that topic names may have{trailing(entry)}")
            elif entry is not None and reads:
                self._carry(entry, f"naming: {naming}", changed=naming != "prefix")
            elif entry is not None:
                self._carry(entry, f"naming: {naming}", "without effect on names here")

    def _start(self) -> str:
        start = ""
        for scope, name in ((self.keys.by_flow.get(self.flow, {}), "A->B"), (self.keys.by_cluster.get(self.flow.source, {}), "A")):
            for key in ("consumer.auto.offset.reset", "source.consumer.auto.offset.reset"):
                entry = scope.get(key)
                if entry is None:
                    continue
                if entry.value not in ("earliest", "latest"):
                    self.keys.note(entry, REFUSED, why="is neither earliest nor latest; a gap halts the topic, see on_loss")
                    continue
                start = start or entry.value
                self._carry(entry, "start", "" if name == "A->B" or start == entry.value else "the flow has its own")
        for scope in (self.keys.by_flow.get(self.flow, {}), self.keys.by_cluster.get(self.flow.source, {})):
            for key in ("consumer.isolation.level", "source.consumer.isolation.level"):
                if key in scope:
                    same = scope[key].value == "read_committed"
                    why = "" if same else "records of aborted transactions are not copied"
                    self.keys.note(scope[key], CARRIED if same else CHANGED, "always read_committed", why)
        return start

    def _groups(self) -> dict[str, Any]:
        sync = self._flag("sync.group.offsets.enabled")
        if sync is None or not sync[1]:
            why = "only with sync.group.offsets.enabled=true; mirror offsets translate answers what checkpoints did"
            for key in ("groups", "groups.exclude", "groups.blacklist", "sync.group.offsets.interval.seconds"):
                entry = self.keys.flow(self.flow, key)
                if entry is not None:
                    self.keys.note(entry, NOT_NEEDED, why=why)
            if sync is not None:
                self.keys.note(sync[0], CARRIED, self._at("no block groups"))
            else:
                self.keys.default("sync.group.offsets.enabled", "", "MirrorMaker's default is false: no group is carried over")
            return {}
        self._carry(sync[0], "groups", "offsets are exact", changed=True)
        block: dict[str, Any] = {"include": self._include("groups", "groups.include")}
        entry, out = self._list("groups.exclude", "groups.blacklist", "groups.exclude")
        if entry is None:
            self.keys.default("groups.exclude", self._at("groups.exclude"), "MirrorMaker's default")
        block["exclude"] = list(GROUPS_LEFT_OUT) if entry is None else out
        seconds = self._interval("sync.group.offsets.interval.seconds", "groups.interval")
        return {**block, "interval": seconds} if seconds else block

    def _unsupported(self) -> None:
        for key in ("refresh.topics.enabled", "refresh.groups.enabled"):
            flag = self._flag(key)
            if flag is not None and not flag[1]:
                self.keys.note(flag[0], REFUSED, why="what matches later is always included; name topics and groups without regexes")
            elif flag is not None:
                self.keys.note(flag[0], NOT_NEEDED, why=f"new {key.split('.')[1]} are always noticed")
        for key, default in _DEFAULT_CLASSES.items():
            entry = self.keys.flow(self.flow, key)
            if entry is not None:
                rule = rule_of(key, FLOW_RULES)
                is_default = entry.value == default
                self.keys.note(entry, CARRIED if is_default else REFUSED, why="" if is_default or rule is None else rule.why)

    def _flag(self, key: str) -> tuple[Entry, bool] | None:
        entry = self.keys.flow(self.flow, key)
        if entry is None:
            return None
        if entry.value.lower() not in ("true", "false"):
            self.keys.problem(entry, f"must be true or false{trailing(entry)}")
        return entry, entry.value.lower() == "true"

    def _number(self, key: str, least: int) -> tuple[Entry, int] | None:
        entry = self.keys.flow(self.flow, key)
        if entry is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,9}", entry.value) or int(entry.value) < least:
            self.keys.problem(entry, f"must be a whole number from {least} on{trailing(entry)}")
            return entry, least
        return entry, int(entry.value)

    def _interval(self, key: str, became: str) -> str:
        """Seconds as a duration of mirror.yaml; "" when the file does not set them."""
        found = self._number(key, least=1)
        if found is None:
            return ""
        entry, seconds = found
        longest = min(seconds, LONGEST_INTERVAL)
        self._carry(entry, became, "" if longest == seconds else "at most 1 hour", changed=longest != seconds)
        return f"{longest}s"
