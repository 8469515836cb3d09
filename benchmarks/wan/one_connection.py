"""What `mirror doctor` predicts of one connection against what it measures, over emulated links.

    python -m benchmarks.wan.one_connection                 50, 100 and 200 ms at 1 Gbit/s; about 3 minutes
    python -m benchmarks.wan.one_connection --for 10s

Needs root (network namespaces), gcc and iproute2. Exit code 1 where they differ by a quarter or more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.wan.far import PLAIN_ADDRESS, WORKLOADS
from benchmarks.wan.link import Line, link

ROOT = Path(__file__).parents[2]
WITHIN = 0.25


def measured(line: Line, folder: Path, seconds: str) -> dict[str, Any]:
    """The source's link as the doctor sees it from the near end."""
    folder.mkdir()
    clusters = {alias: {"bootstrap_servers": PLAIN_ADDRESS} for alias in ("far", "far_too")}
    mirror = {"name": "m", "source": "far", "target": "far_too", "topics": {"include": [".*"]}}
    (folder / "mirror.yaml").write_text(json.dumps({"clusters": clusters, "mirrors": [mirror]}))
    with link(line) as ends:

        def inside(end: str, *words: str) -> subprocess.CompletedProcess[str]:
            command = ends.command(end, sys.executable, "-m", *words)
            return subprocess.run(command, cwd=ROOT, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

        try:
            inside(ends.far, "benchmarks.wan.far", "start", str(folder)).check_returncode()
            inside(ends.far, "benchmarks.wan.far", "fill", WORKLOADS[0].name, "0.1").check_returncode()
            words = ("doctor", "-c", str(folder / "mirror.yaml"), "--for", seconds, "--json")
            answer = inside(ends.near, "mirror_pipeline.cli", *words).stdout
        finally:
            inside(ends.far, "benchmarks.wan.far", "stop", str(folder))
    found: dict[str, Any] = next(each for each in json.loads(answer)["mirrors"][0]["links"] if each["side"] == "source")
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Measure each link and print a line for it."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks.wan.one_connection", description=__doc__, formatter_class=shape)
    parser.add_argument("--round-trip-ms", default="50,100,200", metavar="MS,...")
    parser.add_argument("--for", dest="seconds", default="6s", metavar="TIME", help="of each measurement")
    options = parser.parse_args(given)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="mirror-wan-") as name:
        for trip in options.round_trip_ms.split(","):
            found = measured(Line(float(trip), 1e9), Path(name) / trip, options.seconds)
            ratio = found["predicted"] / found["measured"]
            wrong += abs(ratio - 1) >= WITHIN
            print(json.dumps({"round_trip_ms": float(trip), "predicted_over_measured": round(ratio, 3), **found}), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
