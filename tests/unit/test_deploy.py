"""What `deploy/` starts is there: commands, options, files, values; judged by the tools of each kind where a host has them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from mirror_pipeline import load_config
from mirror_pipeline.cli.main import app
from mirror_pipeline.errors import UsageError
from mirror_pipeline.page.token import TOKEN_ENV, make_token
from tests.support.image import steps_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "mirror.service"
COMPOSE = DEPLOY / "compose.yaml"
# The schema of the Compose Specification, as published at github.com/compose-spec/compose-spec (Apache License 2.0).
COMPOSE_SCHEMA = ROOT / "tests" / "support" / "compose-spec.json"
IMAGE = "mirror-pipeline"
CHART = DEPLOY / "helm" / "mirror-pipeline"
ALL_VALUES = CHART / "ci" / "all-values.yaml"


def understood(words: Sequence[str]) -> dict[str, object]:
    """The values of a command line's options. Raises where the command does not take them."""
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    return dict(command.make_context(words[0], list(words[1:])).params)


def tool(name: str) -> str:
    """The tool's path; without it the test is skipped, and says so."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def unit_settings() -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            settings.setdefault(name, []).append(value)
    return settings


def test_an_option_that_is_not_there_is_noticed() -> None:
    with pytest.raises(Exception, match="--nonsense"):
        understood(["run", "--nonsense"])


def test_the_unit_starts_a_run_and_lets_it_end() -> None:
    settings = unit_settings()
    (start,) = settings["ExecStart"]
    program, *words = shlex.split(start)
    assert program == "/opt/mirror/bin/mirror"
    assert understood(words)["config"] == Path("/etc/mirror/mirror.yaml")
    assert settings["RestartPreventExitStatus"] == [str(UsageError.exit_code)], "a wrong file waits for a person, nothing else does"
    assert settings["KillMode"] == ["mixed"], "Spark would end before its driver"
    assert "MemoryDenyWriteExecute" not in settings, "Java and LLVM write code and run it"
    state = [value for value in settings["Environment"] if value.startswith("MIRROR_STATE=")]
    assert state == ["MIRROR_STATE=/var/lib/mirror/state"], "systemd makes nothing else writable: StateDirectory=mirror"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/mirror/bin/mirror", tool("true")))  # it looks whether the program is there
    done = subprocess.run([tool("systemd-analyze"), "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([tool("hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_dockerfile_copies_is_handed_to_the_engine() -> None:
    handed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [word for what, rest in steps_of(ROOT / "Dockerfile") if what == "COPY" for word in rest.split()[:-1] if "--from" not in rest]
    assert len(copied) > 4
    for name in copied:
        assert (ROOT / name).exists()
        assert any(path == name or path.startswith(f"{name}/") for path in handed), f"{name} is ignored"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text()))


def test_the_compose_file_is_one(compose: dict[str, Any]) -> None:
    schema = jsonschema.Draft7Validator(json.loads(COMPOSE_SCHEMA.read_text()))
    schema.validate(compose)
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(compose | {"services": {"a": {"imagine": "x"}}})


def test_what_compose_mounts_is_there(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"], (name, volume)
        for config in service.get("configs", []):
            assert config["source"] in compose["configs"], (name, config)
        assert set(service.get("depends_on", [])) <= set(compose["services"])


def test_commands_of_compose_are_understood_and_may_write_the_volume_only(compose: dict[str, Any]) -> None:
    ours = {name: service for name, service in compose["services"].items() if service["image"] == IMAGE}
    assert {service["command"][0] for service in ours.values()} == {"run", "exporter", "up"}
    for service in ours.values():
        assert understood(service["command"])["config"] == Path("/etc/mirror/mirror.yaml")
        assert (service["build"], service["read_only"], service["tmpfs"]) == ({"context": ".."}, True, ["/tmp"])
        assert service["volumes"] == ["./compose:/etc/mirror:ro", "data:/data"]
    _, program, *words = ours["mirror"]["healthcheck"]["test"]
    assert (program, words[0]) == ("mirror", "health") and understood(words)


def test_the_mirror_of_compose_copies_between_its_two_clusters(compose: dict[str, Any]) -> None:
    config = load_config(DEPLOY / "compose" / "mirror.yaml")
    (mirror,) = config.mirrors
    ids = {}
    for cluster in (mirror.source, mirror.target):
        (address,) = config.clusters[cluster].bootstrap_servers
        settings = compose["services"][address.split(":")[0]]["environment"]
        assert settings["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{address}"
        ids[cluster] = settings["CLUSTER_ID"]
    assert len(set(ids.values())) == 2 and {len(each) for each in ids.values()} == {22}
    assert str(config.buffer.uri).startswith("/data/")
    produced = next(word for word in compose["services"]["producer"]["command"] if word.startswith("--topic="))
    assert any(re.fullmatch(regex, produced.removeprefix("--topic=")) for regex in mirror.topics.include)


def test_prometheus_of_compose_asks_the_exporter_and_has_the_rules(compose: dict[str, Any]) -> None:
    settings = yaml.safe_load(compose["configs"]["prometheus"]["content"])
    (job,) = settings["scrape_configs"]
    listens = str(understood(compose["services"]["exporter"]["command"])["listen"])
    assert job["static_configs"] == [{"targets": [f"exporter:{listens.rpartition(':')[2]}"]}]
    mounted = {volume.split(":")[1] for volume in compose["services"]["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in settings["rule_files"]} == mounted


def test_the_trial_token_of_compose_is_long_enough(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given = re.fullmatch(r"\$\{MIRROR_UP_TOKEN:-(.*)\}", compose["services"]["dagster"]["environment"][TOKEN_ENV])
    assert given is not None
    monkeypatch.setenv(TOKEN_ENV, given[1])
    assert make_token() == given[1]
    assert f"?token={given[1]}" in COMPOSE.read_text(), "the comment at its top"


@pytest.fixture
def values() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))


@pytest.mark.parametrize("path", [CHART / "values.yaml", ALL_VALUES], ids=lambda path: path.name)
def test_the_charts_values_are_as_their_schema_says(values: jsonschema.Draft7Validator, path: Path) -> None:
    values.validate({**yaml.safe_load((CHART / "values.yaml").read_text()), **yaml.safe_load(path.read_text())})


@pytest.mark.parametrize(
    "wrong",
    [
        {"imagine": "x"}, {"exporter": {"enabeld": True}}, {"exporter": {"port": 80}}, {"dagster": {"enabled": True}},
        {"volume": {"size": "many"}}, {"config": {"clusters": {}}}, {"run": {"args": "--once"}},
    ],
    ids=str,
)  # fmt: skip
def test_the_schema_refuses_wrong_values(values: jsonschema.Draft7Validator, wrong: dict[str, Any]) -> None:
    right = yaml.safe_load((CHART / "values.yaml").read_text())
    with pytest.raises(jsonschema.ValidationError):
        values.validate(right | wrong)


def test_every_value_is_in_the_schema_and_in_a_template() -> None:
    known = json.loads((CHART / "values.schema.json").read_text())["properties"]
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name in yaml.safe_load((CHART / "values.yaml").read_text()):
        assert name in known and f".Values.{name}" in templates, name


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool("helm"), *words], capture_output=True, text=True, timeout=60, check=False)


def test_helm_renders_a_pod_that_runs_the_mirror(tmp_path: Path) -> None:
    linted = helm("lint", "--strict", str(CHART), "--values", str(ALL_VALUES))
    assert linted.returncode == 0, linted.stdout + linted.stderr
    rendered = helm("template", "m", str(CHART), "--values", str(ALL_VALUES))
    assert rendered.returncode == 0, rendered.stderr
    made = {document["kind"]: document for document in yaml.safe_load_all(rendered.stdout)}
    assert set(made) == {"ConfigMap", "PersistentVolumeClaim", "Service", "Deployment"}
    pod = made["Deployment"]["spec"]["template"]["spec"]
    assert made["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (12345, True)
    containers = {container["name"]: container for container in pod["containers"]}
    assert set(containers) == {"run", "exporter", "dagster"}
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in containers.values():
        assert understood(container["args"])["config"] == Path("/etc/mirror/mirror.yaml")
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    program, *words = containers["run"]["readinessProbe"]["exec"]["command"]
    assert program == "mirror" and understood(words)
    ports = {port["name"] for container in containers.values() for port in container.get("ports", [])}
    assert {port["targetPort"] for port in made["Service"]["spec"]["ports"]} == ports == {"metrics", "page"}
    file = tmp_path / "mirror.yaml"
    file.write_text(made["ConfigMap"]["data"]["mirror.yaml"])
    assert [mirror.name for mirror in load_config(file).mirrors] == ["east-to-west"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("", "--set-file config=mirror.yaml"), ("buffer: [", "mirror.yaml is no YAML"),
        ("buffer: {uri: ./buffer}", "write /data/buffer"), ("clusters: {}", "write /data/buffer"),
    ],
)  # fmt: skip
def test_the_chart_says_what_is_wrong_with_the_configuration(tmp_path: Path, config: str, says: str) -> None:
    (tmp_path / "mirror.yaml").write_text(config)
    rendered = helm("template", "m", str(CHART), "--set-file", f"config={tmp_path / 'mirror.yaml'}")
    assert rendered.returncode != 0
    assert says in rendered.stderr
