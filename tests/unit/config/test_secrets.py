"""Secrets are references; values are looked up late and are nowhere else."""

from __future__ import annotations

import json
import pickle
import textwrap
import traceback
from dataclasses import asdict
from pathlib import Path

import pytest

from mirror_pipeline.config import ClusterSettings, Config, FrozenMap, SecretRef, Security, load_config
from mirror_pipeline.errors import ConfigError
from mirror_pipeline.kafka.librdkafka import librdkafka_settings

CANARY = "canary-7f3a!x"
TEXT = """\
clusters:
  east:
    bootstrap_servers: h:1
    security: {protocol: SASL_SSL, mechanism: SCRAM-SHA-512, username: "%s", password: "%s", ca_file: ca.pem}
    client: {%s}
  west: {bootstrap_servers: h:2}
mirrors:
  - {name: m, source: east, target: west, topics: {include: [a]}}
"""


def load(folder: Path, written: str = "${env:CANARY_PW}", client: str = "", username: str = "u") -> Config:
    (folder / "ca.pem").write_text("")
    (folder / "mirror.yaml").write_text(TEXT % (username, written, client))
    return load_config(folder / "mirror.yaml")


def refusal(folder: Path, written: str = "${env:CANARY_PW}", client: str = "", username: str = "u") -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, written, client, username)
    return "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value.__dict__)


def test_a_resolved_secret_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_PW", CANARY)
    config = load(tmp_path)
    assert librdkafka_settings(config.clusters["east"])["sasl.password"] == CANARY
    shown = [repr(config), str(config), json.dumps(asdict(config.clusters["east"].security), default=str), str(config.clusters)]
    assert all(CANARY not in text for text in shown)
    assert CANARY.encode() not in pickle.dumps(config)
    copy = pickle.loads(pickle.dumps(config.clusters["east"]))  # noqa: S301
    assert copy.security.password.resolve() == CANARY


@pytest.mark.parametrize("password", [CANARY, f"x${{env:{CANARY}}}", f"!{CANARY}", f"*{CANARY}", f"@{CANARY}", "${ENV:CANARY_PW}"])
def test_plain_secrets_are_refused_and_not_repeated(tmp_path: Path, password: str) -> None:
    text = refusal(tmp_path, password)
    assert "mirror.yaml:4: clusters.east.security.password: a secret must not be written here" in text
    assert "canary" not in text


@pytest.mark.parametrize("unquoted", [f"!{CANARY}", f"*{CANARY}", f"&{CANARY} [", f"@{CANARY}", f"'{CANARY}", f"{{{CANARY}"])
def test_yaml_errors_do_not_quote_the_line(tmp_path: Path, unquoted: str) -> None:
    (tmp_path / "mirror.yaml").write_text((TEXT % ("u", "PW", "")).replace('"PW"', unquoted))
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "mirror.yaml")
    text = "".join(traceback.format_exception(caught.value))
    assert "mirror.yaml:" in text
    assert "canary" not in text


@pytest.mark.parametrize("key", ["my.secret", "ssl.keystore.password", "some.token", "x.credentials"])
def test_secrets_in_client_must_be_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    text = refusal(tmp_path, client=f"{key}: '{CANARY}'")
    assert f"mirror.yaml:5: clusters.east.client.{key}: a secret must not be written here" in text
    assert "canary" not in text
    monkeypatch.setenv("CANARY_PW", CANARY)
    config = load(tmp_path, client=f"{key}: '${{env:CANARY_PW}}'")
    assert CANARY not in repr(config)
    assert librdkafka_settings(config.clusters["east"])[key] == CANARY


def test_security_in_client_is_sent_to_the_security_block(tmp_path: Path) -> None:
    text = refusal(tmp_path, client="sasl.password: '${env:CANARY_PW}', security.protocol: SSL, bootstrap.servers: 'x:1'")
    assert "client.sasl.password: write it as security.password" in text
    assert "client.security.protocol: write it as security.protocol" in text
    assert "client.bootstrap.servers: write it as bootstrap_servers" in text


def test_unset_and_empty_variables_name_line_and_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANARY_PW", raising=False)
    cluster = load(tmp_path).clusters["east"]
    message = r"mirror.yaml:4: clusters.east.security.password: environment variable CANARY_PW is not set"
    with pytest.raises(ConfigError, match=message):
        librdkafka_settings(cluster)
    monkeypatch.setenv("CANARY_PW", "")
    with pytest.raises(ConfigError, match=message):
        librdkafka_settings(cluster)


def test_secret_files_count_from_the_folder_of_mirror_yaml(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text(f"{CANARY}\n")
    secret = load(tmp_path, "${file:pw}").clusters["east"].security.password
    assert secret is not None
    assert secret.reference == f"${{file:{tmp_path}/pw}}"
    assert secret.resolve() == CANARY
    (tmp_path / "pw").write_text("\n")
    with pytest.raises(ConfigError, match="pw is empty"):
        secret.resolve()
    (tmp_path / "pw").unlink()
    with pytest.raises(ConfigError, match="No such file"):
        secret.resolve()


def test_a_secret_ref_is_made_of_references_only() -> None:
    with pytest.raises(ConfigError) as caught:
        SecretRef(CANARY)
    assert CANARY not in str(caught.value)
    assert (str(SecretRef("${env:A}")), repr(SecretRef("${env:A}"))) == ("${env:A}", "SecretRef('${env:A}')")


def test_librdkafka_settings_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "p")
    plain = librdkafka_settings(ClusterSettings("a", ("h:1", "h:2"), client=FrozenMap({"debug": "admin"})))
    assert plain == {
        "bootstrap.servers": "h:1,h:2", "client.id": "mirror-pipeline", "security.protocol": "PLAINTEXT", "debug": "admin",
        "socket.keepalive.enable": "true", "connections.max.idle.ms": "240000",
    }  # fmt: skip
    pw = SecretRef("${env:PW}")
    mutual = Security("SSL", ca_file="/ca", cert_file="/c", key_file="/k", key_password=pw, verify_hostname=False)
    tls = librdkafka_settings(ClusterSettings("a", ("h:1",), mutual))
    assert {k: v for k, v in tls.items() if k.startswith("ssl.")} == {
        "ssl.ca.location": "/ca",
        "ssl.certificate.location": "/c",
        "ssl.key.location": "/k",
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "none",
    }
    sasl = librdkafka_settings(ClusterSettings("a", ("h:1",), Security("SASL_SSL", "SCRAM-SHA-256", "u", pw)))
    assert (sasl["sasl.mechanism"], sasl["sasl.username"], sasl["sasl.password"]) == ("SCRAM-SHA-256", "u", "p")
    assert sasl["ssl.endpoint.identification.algorithm"] == "https"


@pytest.mark.parametrize(
    ("block", "line"),
    [
        ("{username: u}", "username: has no effect with protocol PLAINTEXT; did you mean protocol: SASL_PLAINTEXT?"),
        ("{protocol: SASL_SSL, mechanism: PLAIN, username: u}", "password: is missing; protocol SASL_SSL needs it"),
        (
            "{protocol: SASL_PLAINTEXT, mechanism: PLAIN, username: u, password: '${env:P}'}",
            "mechanism: PLAIN would send the password unencrypted; use protocol SASL_SSL, or SCRAM-SHA-512",
        ),
        ("{ca_file: ca.pem}", "ca_file: has no effect with protocol PLAINTEXT; did you mean protocol: SSL?"),
        ("{protocol: SSL, ca_file: none.pem}", "ca_file: no such file: "),
        ("{protocol: SSL, cert_file: ca.pem}", "cert_file: also requires key_file"),
        ("{protocol: SSL, key_password: '${env:P}'}", "key_password: also requires key_file"),
        ("{verify_hostname: false}", "verify_hostname: has no effect with protocol PLAINTEXT"),
        ("{protocol: TLS}", 'protocol: "TLS" is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL'),
    ],
)
def test_security_blocks_that_do_not_fit(tmp_path: Path, block: str, line: str) -> None:
    (tmp_path / "ca.pem").write_text("")
    text = f"""\
    clusters:
      east: {{bootstrap_servers: "h:1", security: {block}}}
      west: {{bootstrap_servers: "h:2"}}
    mirrors:
      - {{name: m, source: east, target: west, topics: {{include: [a]}}}}
    """
    (tmp_path / "mirror.yaml").write_text(textwrap.dedent(text))
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "mirror.yaml")
    (found,) = caught.value.message.splitlines()
    assert f"mirror.yaml:2: clusters.east.security.{line}" in found


def test_a_user_name_may_be_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People keep the whole login in their secret store, not the password alone."""
    (tmp_path / "user").write_text("from-file\n")
    for text, name in (("mirror", "mirror"), ("${env:EAST_USER}", "from-env"), ("${file:user}", "from-file")):
        monkeypatch.setenv("EAST_USER", "from-env")
        monkeypatch.setenv("CANARY_PW", CANARY)
        cluster = load(tmp_path, username=text).clusters["east"]
        assert librdkafka_settings(cluster)["sasl.username"] == cluster.security.user == name
    assert "security.username: a reference must be the whole value" in refusal(tmp_path, username="mirror-${env:EAST_USER}")
