"""The pages, the schema and the examples of mirror.yaml agree with the models that read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mirror_pipeline.config import load_config
from mirror_pipeline.config.models import FileModel
from mirror_pipeline.config.template import template
from scripts import generate_docs
from scripts.config_page import json_schema, render

ROOT = Path(__file__).parents[3]
AGAIN = "run: make docs"


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == render(), AGAIN


def test_the_schema_is_up_to_date() -> None:
    assert json.loads((ROOT / "docs/mirror.schema.json").read_text(encoding="utf-8")) == json_schema(), AGAIN


@pytest.mark.parametrize("page", generate_docs.pages())
def test_generating_again_changes_nothing(page: str) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == generate_docs.pages()[page], AGAIN


def test_every_key_has_a_meaning_and_is_in_the_reference() -> None:
    text = render()
    schema = FileModel.model_json_schema()
    for section in [schema, *schema["$defs"].values()]:
        for key, body in section["properties"].items():
            assert len(body["description"]) > 10, key
            assert f"| `{key}` | {body['x-type']}" in text


def test_the_example_loads_and_fits_the_schema() -> None:
    path = ROOT / "mirror.example.yaml"
    config = load_config(path)
    assert [m.name for m in config.mirrors] == ["east-to-west", "west-to-east"]
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), json_schema())


def test_the_example_shows_every_key() -> None:
    text = (ROOT / "mirror.example.yaml").read_text(encoding="utf-8")
    schema = FileModel.model_json_schema()
    keys = {key for section in [schema, *schema["$defs"].values()] for key in section["properties"]}
    assert {key for key in keys if f"{key}:" not in text} == set()


def test_the_template_loads(tmp_path: Path) -> None:
    path = tmp_path / "mirror.yaml"
    path.write_text(template("a:1,b:2", "c:3", source="paris", target="new-york", include=("orders", r"it's\..*")))
    config = load_config(path)
    assert config.clusters["paris"].bootstrap_servers == ("a:1", "b:2")
    assert config.mirrors[0].topics.include == ("orders", r"it's\..*")
    assert config.mirror("paris-to-new-york").target == "new-york"
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())


def test_the_commented_security_of_the_template_loads_too(tmp_path: Path) -> None:
    lines = template().splitlines()
    first = next(i for i, line in enumerate(lines) if "# security:" in line)
    uncommented = [line.replace("    # ", "    ", 1) if first <= i < first + 6 else line for i, line in enumerate(lines)]
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs/ca.pem").write_text("")
    (tmp_path / "mirror.yaml").write_text("\n".join(uncommented))
    security = load_config(tmp_path / "mirror.yaml").clusters["east"].security
    assert (security.protocol, security.mechanism, str(security.password)) == ("SASL_SSL", "SCRAM-SHA-512", "${env:EAST_PASSWORD}")


@pytest.mark.parametrize(
    "change",
    [{"bufer": {}}, {"buffer": {"retention": 24}}, {"buffer": {"max_bytes": "5XB"}}, {"mirrors": []}, {"engine": {"tasks": 0}}],
)
def test_the_schema_refuses_what_the_loader_refuses(change: dict[str, Any]) -> None:
    good = yaml.safe_load(template())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | change, json_schema())
