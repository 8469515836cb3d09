"""The archive for support: complete although things fail, and without any secret in any form."""

from __future__ import annotations

import base64
import json
import stat
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest

from mirror_pipeline.config import Config, load_config
from mirror_pipeline.errors import ClusterUnreachable, UsageError
from mirror_pipeline.operations.support_bundle import support_bundle

PASSWORD, STORE, HOOK, KEY, TOKEN = 'p"a/ss wörd+1', "store-pass-7", "xoxb-41-hook-secret", "key-password-9", "page-token-1234567890"
YAML = """
# the old password was canary-in-a-comment
clusters:
  east:
    bootstrap_servers: east:9092
    security:
      protocol: SASL_SSL
      mechanism: PLAIN
      username: ann
      password: ${env:BUNDLE_PASSWORD}
      cert_file: cert.pem
      key_file: key.pem
      key_password: ${file:key-password}
    client: {ssl.truststore.password: "${env:BUNDLE_STORE}"}
  west: {bootstrap_servers: west:9092}
buffer: {uri: ./buffer}
mirrors:
  - {name: m, source: east, target: west, topics: {include: [orders]}}
notify: {urls: ["json://alerts.example/hooks/%s/x", "${env:BUNDLE_HOOK}"]}
page: {users: [{name: anna, role: look, token: "${env:BUNDLE_TOKEN}"}]}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("BUNDLE_PASSWORD", PASSWORD)
    monkeypatch.setenv("BUNDLE_STORE", STORE)
    monkeypatch.setenv("BUNDLE_HOOK", f"https://hooks.example/services/T1/{HOOK}-2")
    monkeypatch.setenv("BUNDLE_TOKEN", TOKEN)
    (tmp_path / "key-password").write_text(KEY + "\n")
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).touch()
    path = tmp_path / "mirror.yaml"
    path.write_text(YAML % HOOK)
    return load_config(path)


def opened(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {name.partition("/")[2]: (archive.extractfile(name) or path.open("rb")).read().decode() for name in archive.getnames()}


def test_no_secret_is_in_it_in_any_form(config: Config, tmp_path: Path) -> None:
    secrets = [PASSWORD, STORE, HOOK, f"{HOOK}-2", KEY, TOKEN]
    forms = [form for each in secrets for form in (
        each, quote(each, safe=""), json.dumps(each)[1:-1], base64.b64encode(each.encode()).decode(),
        base64.b64encode(f"ann:{each}".encode()).decode(), base64.b64encode(f"\0ann\0{each}".encode()).decode(),
    )]  # fmt: skip
    logs = config.state_folder / "dagster_home" / "server_logs"
    logs.mkdir(parents=True)
    (logs / "webserver.log").write_text("\n".join(["first line", *forms]))
    out = tmp_path / "bundle.tar.gz"
    names = support_bundle(config, {"m/status": lambda: {"said": forms}}, out)
    found = opened(out)
    assert set(found) == set(names) == {"versions.json", "settings.json", "m/status.json", "logs/dagster_home/server_logs/webserver.log"}
    text = "\n".join(found.values())
    assert [form for form in forms if form in text] == []
    assert "canary-in-a-comment" not in text
    assert "first line" in text
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_settings_are_those_in_effect_with_references(config: Config, tmp_path: Path) -> None:
    support_bundle(config, {}, tmp_path / "b.tar.gz")
    settings = json.loads(opened(tmp_path / "b.tar.gz")["settings.json"])
    assert settings["clusters"]["east"]["security"]["password"] == "${env:BUNDLE_PASSWORD}"
    assert settings["mirrors"][0]["on_loss"] == "halt"
    assert settings["notify"]["urls"] == ["json://<hidden>", "${env:BUNDLE_HOOK}"]


def test_a_cluster_that_is_down_is_in_it_with_its_error(config: Config, tmp_path: Path) -> None:
    def lag() -> object:
        raise ClusterUnreachable("east", "cluster east: no broker answers", hint="start it")

    support_bundle(config, {"m/lag": lag, "m/gaps": list}, tmp_path / "b.tar.gz")
    found = opened(tmp_path / "b.tar.gz")
    assert json.loads(found["m/lag.json"]) == {"error": "cluster east: no broker answers (start it)"}
    assert json.loads(found["m/gaps.json"]) == []


def test_a_place_that_cannot_be_written_is_named(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        support_bundle(config, {}, tmp_path / "nowhere" / "b.tar.gz")


def test_of_a_long_log_the_end_is_kept(config: Config, tmp_path: Path) -> None:
    config.state_folder.mkdir()
    (config.state_folder / "lane.log").write_text("early\n" + "x" * (3 << 20) + "\nlate")
    support_bundle(config, {}, tmp_path / "b.tar.gz")
    log = opened(tmp_path / "b.tar.gz")["logs/lane.log"]
    assert log.endswith("late")
    assert "early" not in log
