"""What child processes write is kept off both streams; Python's own output is not."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, subprocess, sys, time
from mirror_pipeline.cli.spark_output import children_unheard, KEPT_LINES

def child(text):
    subprocess.run(["sh", "-c", f"echo {text} out; echo {text} err >&2"], check=True)

child("before")
print("python before", flush=True)
with children_unheard(wanted=WANTED) as heard:
    child("inside")
    for number in range(100):
        os.write(2, b"line %d\\n" % number)
    print("python inside")
    print("python inside err", file=sys.stderr)
    end = time.monotonic() + 30
    while WANTED and "line 99" not in heard.lines() and time.monotonic() < end:
        time.sleep(0.01)
child("after")
print("python after", len(heard.lines()) == KEPT_LINES, heard.lines()[-1:])
print("python after err", file=sys.stderr)
"""


def ran(wanted: bool) -> tuple[list[str], list[str]]:
    program = PROGRAM.replace("WANTED", str(wanted))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return ended.stdout.splitlines(), ended.stderr.splitlines()


def test_children_are_unheard_inside_and_only_there() -> None:
    out, err = ran(wanted=True)
    assert out == ["before out", "python before", "python inside", "after out", "python after True ['line 99']"]
    assert err == ["before err", "python inside err", "after err", "python after err"]


def test_nothing_is_caught_unless_wanted() -> None:
    out, err = ran(wanted=False)
    assert "inside out" in out and "inside err" in err and "line 99" in err
