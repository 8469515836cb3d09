"""SCRAM on a listener ``SECURE`` of brokers: their settings, the mirror's user, its login."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

USER = "mirror"
SCRAM = {
    "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.secure.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
}


def set_password(servers: str, password: str) -> None:
    """Of the mirror's user, by the operator's listener."""
    change = UserScramCredentialUpsertion(USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode())
    admin = AdminClient({"bootstrap.servers": servers})  # kept: its calls end with it
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(15)


def login(secret: Path, authority: Path | None = None) -> dict[str, str]:
    """The ``security`` block of a cluster in mirror.yaml; TLS with an authority."""
    tls = {"ca_file": str(authority)} if authority else {}
    protocol = "SASL_SSL" if authority else "SASL_PLAINTEXT"
    return {"protocol": protocol, "mechanism": "SCRAM-SHA-512", "username": USER, "password": f"${{file:{secret}}}", **tls}
