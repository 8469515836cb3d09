"""Every key of MirrorMaker 2 that the import knows, and what becomes of it. The table in docs/from-mirrormaker.md is made from it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mirror_pipeline.reports import ImportOutcome

CARRIED, CHANGED, NOT_NEEDED, REFUSED = ImportOutcome.CARRIED, ImportOutcome.CHANGED, ImportOutcome.NOT_NEEDED, ImportOutcome.REFUSED


@dataclass(frozen=True, slots=True)
class KeyRule:
    """A key (``*`` stands for any end), what usually becomes of it, the key of mirror.yaml it becomes, and why."""

    key: str
    outcome: ImportOutcome
    became: str
    why: str


_COPIED = "batches are copied as they are stored; sizes are set in engine"
_LEDGER = "the ledger holds the exact map of offsets; no topic is written for it"

# Settings of a cluster: A.KEY, or KEY for all clusters.
CLUSTER_RULES = (
    KeyRule("clusters", CARRIED, "clusters", ""),
    KeyRule("bootstrap.servers", CARRIED, "clusters.A.bootstrap_servers", ""),
    KeyRule("security.protocol", CARRIED, "clusters.A.security.protocol", ""),
    KeyRule("sasl.mechanism", CARRIED, "clusters.A.security.mechanism", "others than PLAIN with TLS and SCRAM are refused"),
    KeyRule("sasl.jaas.config", CHANGED, "clusters.A.security.username, password", "the password becomes a reference ${env:A_PASSWORD}"),
    KeyRule("ssl.truststore.location", CARRIED, "clusters.A.security.ca_file", "PEM; JKS and PKCS12 are refused; cacerts is not needed"),
    KeyRule("ssl.truststore.type", NOT_NEEDED, "", "PEM is the only type"),
    KeyRule("ssl.truststore.password", NOT_NEEDED, "", "a PEM file of certificates has no password"),
    KeyRule("ssl.keystore.location", CHANGED, "clusters.A.security.cert_file, key_file", "PEM; JKS and PKCS12 are refused"),
    KeyRule("ssl.keystore.type", NOT_NEEDED, "", "PEM is the only type"),
    KeyRule("ssl.keystore.password", NOT_NEEDED, "", "a PEM file has no password of its own, see ssl.key.password"),
    KeyRule("ssl.key.password", CHANGED, "clusters.A.security.key_password", "the password becomes a reference ${env:A_KEY_PASSWORD}"),
    KeyRule("ssl.endpoint.identification.algorithm", CHANGED, "clusters.A.security.verify_hostname", "empty becomes false"),
    KeyRule("ssl.truststore.certificates", REFUSED, "", "write the certificates into a file, then ssl.truststore.location"),
    KeyRule("ssl.keystore.certificate.chain", REFUSED, "", "write chain and key into a PEM file, then ssl.keystore.location"),
    KeyRule("ssl.keystore.key", REFUSED, "", "write chain and key into a PEM file, then ssl.keystore.location"),
    KeyRule("ssl.protocol", NOT_NEEDED, "", "the TLS library negotiates the version"),
    KeyRule("ssl.enabled.protocols", NOT_NEEDED, "", "the TLS library negotiates the version"),
    KeyRule("ssl.cipher.suites", NOT_NEEDED, "", "the TLS library negotiates the cipher"),
    KeyRule("ssl.secure.random.implementation", NOT_NEEDED, "", "concerns Java's TLS"),
    KeyRule("ssl.provider", NOT_NEEDED, "", "concerns Java's TLS"),
    KeyRule("ssl.keymanager.algorithm", NOT_NEEDED, "", "concerns Java's TLS"),
    KeyRule("ssl.trustmanager.algorithm", NOT_NEEDED, "", "concerns Java's TLS"),
    KeyRule("ssl.engine.factory.class", REFUSED, "", "is Java code; use PEM files"),
    KeyRule("sasl.kerberos.*", REFUSED, "", "Kerberos is not supported; use SCRAM-SHA-512"),
    KeyRule("sasl.login.*", REFUSED, "", "logins by Java classes are not supported; use SCRAM-SHA-512"),
    KeyRule("sasl.oauthbearer.*", REFUSED, "", "OAUTHBEARER is not supported; use SCRAM-SHA-512"),
    KeyRule("sasl.client.callback.handler.class", REFUSED, "", "logins by Java classes are not supported; use SCRAM-SHA-512"),
    KeyRule("security.providers", REFUSED, "", "is Java code"),
)

# Settings of a flow: A->B.KEY, or KEY for all flows.
FLOW_RULES = (
    KeyRule("enabled", CARRIED, "mirrors[]", "each enabled flow becomes a mirror"),
    KeyRule("topics", CARRIED, "topics.include", "one regex for each entry of the list"),
    KeyRule("topics.exclude", CARRIED, "topics.exclude", "with what MirrorMaker always leaves out"),
    KeyRule("topics.blacklist", CHANGED, "topics.exclude", "old name of topics.exclude"),
    KeyRule("groups", CARRIED, "groups.include", "only with sync.group.offsets.enabled"),
    KeyRule("groups.exclude", CARRIED, "groups.exclude", "only with sync.group.offsets.enabled"),
    KeyRule("groups.blacklist", CHANGED, "groups.exclude", "old name of groups.exclude"),
    KeyRule("sync.group.offsets.enabled", CHANGED, "groups", "true writes the block groups; offsets are exact"),
    KeyRule("sync.group.offsets.interval.seconds", CARRIED, "groups.interval", ""),
    KeyRule("replication.factor", CARRIED, "topics.replication_factor", "-1 leaves the key out"),
    KeyRule("config.properties.exclude", CARRIED, "topics.configs.exclude", ""),
    KeyRule("config.properties.blacklist", CHANGED, "topics.configs.exclude", "old name of config.properties.exclude"),
    KeyRule("use.defaults.from", CARRIED, "topics.configs.defaults_from", "only as A->B.use.defaults.from, as MirrorMaker reads it"),
    KeyRule("sync.topic.configs.enabled", CARRIED, "topics.configs.sync", ""),
    KeyRule("sync.topic.configs.interval.seconds", CARRIED, "topics.configs.interval", "at most 1 hour"),
    KeyRule("sync.topic.acls.enabled", CARRIED, "topics.acls.sync", "revocations on the source are followed too"),
    KeyRule("replication.policy.class", CARRIED, "naming", "prefix or identity; other classes are refused, then --naming says what it is"),
    KeyRule("replication.policy.separator", CHANGED, "naming", "another separator than . becomes a template; see source.cluster.alias"),
    KeyRule("source.cluster.alias", CHANGED, "naming", "empty, with an empty separator: identity; another alias stands in the template"),
    KeyRule("target.cluster.alias", NOT_NEEDED, "", "names of target topics do not depend on it"),
    KeyRule("consumer.auto.offset.reset", CARRIED, "start", "as A.consumer.auto.offset.reset or A->B.consumer.auto.offset.reset"),
    KeyRule("consumer.isolation.level", CHANGED, "", "always read_committed: records of aborted transactions are never copied"),
    KeyRule("refresh.topics.enabled", NOT_NEEDED, "", "new topics are always noticed; false is refused"),
    KeyRule("refresh.groups.enabled", NOT_NEEDED, "", "new groups are always noticed; false is refused"),
    KeyRule("topic.filter.class", REFUSED, "", "is Java code; only the default filter is carried"),
    KeyRule("group.filter.class", REFUSED, "", "is Java code; only the default filter is carried"),
    KeyRule("config.property.filter.class", REFUSED, "", "is Java code; only the default filter is carried"),
    KeyRule("forwarding.admin.class", REFUSED, "", "is Java code; only the default class is carried"),
    KeyRule("transforms", REFUSED, "", "records are copied unchanged"),
    KeyRule("transforms.*", REFUSED, "", "records are copied unchanged"),
    KeyRule("predicates", REFUSED, "", "records are copied unchanged"),
    KeyRule("predicates.*", REFUSED, "", "records are copied unchanged"),
    KeyRule("errors.tolerance", REFUSED, "", "all is refused: no record is skipped silently; see on_loss"),
)

# Nothing corresponds to these, in any scope; the first that fits counts.
IDLE_RULES = (
    KeyRule("refresh.topics.interval.seconds", NOT_NEEDED, "", "new topics are noticed after 30 s to 2 min"),
    KeyRule("refresh.groups.interval.seconds", NOT_NEEDED, "", "new groups are noticed in the next round"),
    KeyRule("sync.topic.acls.interval.seconds", NOT_NEEDED, "", "ACLs are compared together with the settings of topics"),
    KeyRule("replication.policy.internal.topic.separator.enabled", NOT_NEEDED, "", "no internal topic is written"),
    KeyRule("emit.checkpoints.enabled", NOT_NEEDED, "", "mirror offsets translate answers what checkpoints did"),
    KeyRule("emit.checkpoints.interval.seconds", NOT_NEEDED, "", "mirror offsets translate answers what checkpoints did"),
    KeyRule("checkpoints.topic.*", NOT_NEEDED, "", _LEDGER),
    KeyRule("emit.heartbeats.enabled", NOT_NEEDED, "", "mirror lag and mirror health say whether the mirror keeps up"),
    KeyRule("emit.heartbeats.interval.seconds", NOT_NEEDED, "", "mirror lag and mirror health say whether the mirror keeps up"),
    KeyRule("heartbeats.*", NOT_NEEDED, "", "no heartbeats are written"),
    KeyRule("emit.offset-syncs.enabled", NOT_NEEDED, "", _LEDGER),
    KeyRule("offset-syncs.*", NOT_NEEDED, "", _LEDGER),
    KeyRule("offset.lag.max", NOT_NEEDED, "", _LEDGER),
    KeyRule("tasks.max", NOT_NEEDED, "", "work is spread over cores by itself, see engine.tasks"),
    KeyRule("exactly.once.source.support", NOT_NEEDED, "", "every record is copied exactly once"),
    KeyRule("exactly.once.support", NOT_NEEDED, "", "every record is copied exactly once"),
    KeyRule("transaction.boundary", NOT_NEEDED, "", "no transactions are written"),
    KeyRule("dedicated.mode.enable.internal.rest", NOT_NEEDED, "", "lanes need no REST server"),
    KeyRule("listeners", NOT_NEEDED, "", "lanes need no REST server"),
    KeyRule("admin.listeners", NOT_NEEDED, "", "lanes need no REST server"),
    KeyRule("rest.*", NOT_NEEDED, "", "lanes need no REST server"),
    KeyRule("offset.storage.*", NOT_NEEDED, "", "positions are in the ledger"),
    KeyRule("status.storage.*", NOT_NEEDED, "", "the state of lanes is in the buffer's folder"),
    KeyRule("config.storage.*", NOT_NEEDED, "", "mirror.yaml is the configuration"),
    KeyRule("offset.flush.*", NOT_NEEDED, "", "the position follows from the target's log"),
    KeyRule("group.id", NOT_NEEDED, "", "lanes are no Connect group"),
    KeyRule("scheduled.rebalance.max.delay.ms", NOT_NEEDED, "", "lanes are no Connect group"),
    KeyRule("worker.*", NOT_NEEDED, "", "concerns Connect"),
    KeyRule("task.*", NOT_NEEDED, "", "concerns Connect"),
    KeyRule("plugin.*", NOT_NEEDED, "", "concerns Connect"),
    KeyRule("connector.client.config.override.policy", NOT_NEEDED, "", "concerns Connect"),
    KeyRule("header.converter", NOT_NEEDED, "", "headers are copied as bytes; other converters than ByteArrayConverter are refused"),
    KeyRule("key.converter", NOT_NEEDED, "", "keys are copied as bytes; other converters than ByteArrayConverter are refused"),
    KeyRule("value.converter", NOT_NEEDED, "", "values are copied as bytes; other converters than ByteArrayConverter are refused"),
    KeyRule("config.providers*", NOT_NEEDED, "", "secrets are references: ${env:NAME} or ${file:path}"),
    KeyRule("metric.reporters", NOT_NEEDED, "", "metrics are in Dagster and in mirror sql"),
    KeyRule("metrics.*", NOT_NEEDED, "", "metrics are in Dagster and in mirror sql"),
    KeyRule("auto.include.jmx.reporter", NOT_NEEDED, "", "metrics are in Dagster and in mirror sql"),
    KeyRule("add.source.alias.to.metrics", NOT_NEEDED, "", "metrics are in Dagster and in mirror sql"),
    KeyRule("use.incremental.alter.configs", NOT_NEEDED, "", "settings are changed incrementally"),
    KeyRule("errors.*", NOT_NEEDED, "", "concerns Connect"),
    KeyRule("consumer.poll.timeout.ms", NOT_NEEDED, "", "see engine.poll_interval"),
    KeyRule("admin.timeout.ms", NOT_NEEDED, "", "see engine.request_timeout"),
    KeyRule("consumer.*", NOT_NEEDED, "", _COPIED),
    KeyRule("producer.*", NOT_NEEDED, "", _COPIED),
    KeyRule("admin.*", NOT_NEEDED, "", "concerns MirrorMaker's own client"),
    KeyRule("source.consumer.*", NOT_NEEDED, "", _COPIED),
    KeyRule("target.producer.*", NOT_NEEDED, "", _COPIED),
    KeyRule("source.*", NOT_NEEDED, "", "concerns MirrorMaker's own client"),
    KeyRule("target.*", NOT_NEEDED, "", "concerns MirrorMaker's own client"),
    KeyRule("client.*", NOT_NEEDED, "", "concerns MirrorMaker's own client"),
    KeyRule("request.timeout.ms", NOT_NEEDED, "", "see engine.request_timeout"),
    KeyRule("retries", NOT_NEEDED, "", "requests are repeated while that is safe"),
    KeyRule("retry.backoff.*", NOT_NEEDED, "", "requests are repeated while that is safe"),
    KeyRule("reconnect.backoff.*", NOT_NEEDED, "", "connections are opened again by themselves"),
    KeyRule("connections.max.idle.ms", NOT_NEEDED, "", "connections are opened again by themselves"),
    KeyRule("socket.connection.setup.*", NOT_NEEDED, "", "connections are opened again by themselves"),
    KeyRule("metadata.*", NOT_NEEDED, "", "leaders are looked up when needed"),
    KeyRule("send.buffer.bytes", NOT_NEEDED, "", "the kernel sizes socket buffers"),
    KeyRule("receive.buffer.bytes", NOT_NEEDED, "", "the kernel sizes socket buffers"),
    KeyRule("session.timeout.ms", NOT_NEEDED, "", "lanes are no Connect group"),
    KeyRule("heartbeat.interval.ms", NOT_NEEDED, "", "lanes are no Connect group"),
    KeyRule("rebalance.timeout.ms", NOT_NEEDED, "", "lanes are no Connect group"),
)

CLUSTER_KEYS = frozenset(rule.key for rule in CLUSTER_RULES if "*" not in rule.key)


def rule_of(key: str, rules: tuple[KeyRule, ...]) -> KeyRule | None:
    """The first rule that fits a key without its alias or flow."""
    return next((rule for rule in rules if re.fullmatch(re.escape(rule.key).replace(r"\*", ".*"), key)), None)
