"""What shells complete, through the script that bash is given."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FILE = """clusters:
  east: {bootstrap_servers: "h:1"}
  west: {bootstrap_servers: "h:2"}
mirrors:
  - {name: east-to-west, source: east, target: west, topics: {include: [alpha, 'eu\\.orders', "a.*"]}}
  - {name: back, source: west, target: east, topics: {include: [beta]}, naming: identity}
"""
COMPLETE = """
eval "$(mirror --show-completion bash)"
COMP_WORDS=({line}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_mirror_completion mirror
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mirror remi", {"remirror"}),
        ("mirror lag --mirror b", {"back"}),
        ("mirror failover ''", {"east-to-west", "back"}),
        ("mirror -c other.yaml lag -m ''", {"only"}),
        ("mirror remirror -t ''", {"alpha", "eu.orders", "beta"}),
        ("mirror remirror --mirror back --topic ''", {"beta"}),
        ("mirror run -t e", {"eu.orders"}),
        ("mirror lag -c missing.yaml -m ''", {""}),
    ],
)
def test_bash_completes_commands_and_the_mirrors_of_the_file(tmp_path: Path, line: str, expected: set[str]) -> None:
    (tmp_path / "mirror.yaml").write_text(FILE)
    (tmp_path / "other.yaml").write_text(FILE.replace("east-to-west", "only").replace("  - {name: back", "  # - {name: back"))
    (tmp_path / "mirror").write_text(f'#!/bin/sh\nexec {sys.executable} -m mirror_pipeline.cli "$@"\n')
    (tmp_path / "mirror").chmod(0o755)
    script = f"PATH={tmp_path}:$PATH\n{COMPLETE.format(line=line)}"
    answer = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert set(answer.stdout.split("\n")[:-1]) == expected, answer
