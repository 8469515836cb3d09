"""``mirror exporter`` refuses what it cannot read in one line, and begins nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pipeline.cli.main import main
from tests.support.mirrors import write_config


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--every", "soon", "'soon' is not a duration"),
        ("--listen", "9308", "--listen 9308: this is not HOST:PORT"),
        ("--listen", "127.0.0.1:http", "this is not HOST:PORT"),
    ],
)
def test_bad_options_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, said: str) -> None:
    config = write_config(tmp_path, "127.0.0.1:1", "127.0.0.1:2", ["t"])
    assert main(["exporter", option, value, "-c", str(config)]) == 2
    assert said in capsys.readouterr().err
