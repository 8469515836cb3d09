"""The neutral security block in librdkafka's words."""

from __future__ import annotations

from mirror_pipeline.config.secrets import resolved
from mirror_pipeline.config.settings import ClusterSettings, Security

# Idle connections die without a word: the kernel probes them, and after four minutes they are closed.
KEPT_ALIVE = {"socket.keepalive.enable": "true", "connections.max.idle.ms": "240000"}


def librdkafka_settings(cluster: ClusterSettings) -> dict[str, str]:
    """Properties for confluent-kafka. They hold resolved secrets: hand them to a client, keep and log them nowhere.

    Raises:
        ConfigError: a secret cannot be resolved.
    """
    settings = {"bootstrap.servers": ",".join(cluster.bootstrap_servers), "client.id": "mirror-pipeline", **KEPT_ALIVE}
    settings |= _security(cluster.security)
    for key, value in cluster.client.items():
        settings[key] = resolved(value)
    return settings


def _security(security: Security) -> dict[str, str]:
    settings = {"security.protocol": security.protocol}
    files = {"ssl.ca.location": security.ca_file, "ssl.certificate.location": security.cert_file, "ssl.key.location": security.key_file}
    settings |= {key: value for key, value in files.items() if value is not None}
    if security.uses_tls:
        settings["ssl.endpoint.identification.algorithm"] = "https" if security.verify_hostname else "none"
    if security.key_password is not None:
        settings["ssl.key.password"] = security.key_password.resolve()
    if security.uses_sasl:
        settings["sasl.mechanism"] = security.mechanism or ""
        settings["sasl.username"] = security.user
        settings["sasl.password"] = security.password.resolve() if security.password else ""
    return settings
