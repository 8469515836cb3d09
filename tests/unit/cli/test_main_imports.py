"""`mirror import-mm2`: the table of keys, what to set, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirror_pipeline.cli.main import main

TEXT = """\
clusters = east, west
east.bootstrap.servers = e:9092
west.bootstrap.servers = w:9092
west.security.protocol = SASL_SSL
west.sasl.mechanism = PLAIN
west.sasl.jaas.config = org.apache.kafka.common.security.plain.PlainLoginModule required username="mm" password="s3cret";
east->west.enabled = true
"""


@pytest.fixture
def properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("mm2.properties")
    path.write_text(TEXT)
    return path


def test_it_says_what_was_written_and_what_to_set(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-mm2", str(properties)]) == 0
    out = capsys.readouterr().out
    assert "wrote mirror.yaml, 1 mirror: east-to-west; next: mirror check" in out
    assert "set before you start: WEST_PASSWORD (now in west.sasl.jaas.config)" in out
    assert any(line.split()[:3] == ["carried", "7", "east->west.enabled"] for line in out.splitlines())
    assert "s3cret" not in out + Path("mirror.yaml").read_text()


def test_a_refused_key_ends_with_exit_code_1_and_writes_nothing(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    properties.write_text(TEXT + "east->west.transforms = drop\n")
    assert main(["import-mm2", str(properties), "--json"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["path"] is None
    assert [key["line"] for key in report["keys"] if key["outcome"] == "refused"] == [8]
    assert err.splitlines() == [
        "error: 1 key of mm2.properties cannot be carried; nothing was written",
        "hint: change or remove them, or leave them out with --without-refused",
    ]
    assert not Path("mirror.yaml").exists()
    assert main(["import-mm2", str(properties), "--without-refused", "-o", "other.yaml"]) == 0
    assert "next: mirror check -c other.yaml" in capsys.readouterr().out


def test_a_wrong_file_is_one_line_for_each_problem(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    properties.write_text(TEXT + "east->north.enabled = true\neast->west.topics = (\n")
    assert main(["import-mm2", str(properties)]) == 2
    err = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in err] == ["mm2.properties:8", "mm2.properties:9"]
