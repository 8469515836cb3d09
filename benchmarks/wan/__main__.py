"""This tool and MirrorMaker 2 over an emulated long link: source far, target and mirror near.

    python -m benchmarks.wan                        200 ms, 1 Gbit/s, without loss and with 0.1 %; about 15 minutes
    python -m benchmarks.wan --tls --loss 0 --rounds 1

Needs root (network namespaces), gcc and iproute2. A copy that a link makes too long is ended after --seconds: its rate
is that of the records which arrived until then.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import bars, machine, results, table
from benchmarks.mm2 import JARS, reasons
from benchmarks.versus import now, say
from benchmarks.wan.far import WORKLOADS
from benchmarks.wan.link import CONGESTION, Ends, Line, link, needed
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.execution.jars import ensure_jars, terminal_progress
from mirror_pipeline.local.embedded.settings import DEFAULT_VERSION
from mirror_pipeline.units import parse_size

OUTPUT = Path("build/bench/wan.json")
ROOT = Path(__file__).parents[2]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.wan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round-trip-ms", type=float, default=200.0)
    parser.add_argument("--bits-per-second", type=float, default=1e9)
    parser.add_argument("--loss", default="0,0.001", metavar="SHARE,...", help="of packets, in each direction; one link after another")
    parser.add_argument("--congestion", default=CONGESTION, metavar="NAME", help="congestion control of both ends, as cubic or bbr")
    parser.add_argument("--tls", action="store_true", help="the mirrors read over TLS")
    parser.add_argument("--workload", default=WORKLOADS[0].name, choices=[w.name for w in WORKLOADS])
    parser.add_argument("--sides", default="ours,tuned,default")
    parser.add_argument("--inline-bytes", type=parse_size, metavar="SIZE", help="engine.inline_bytes of `ours`; 0 gives all of it to Spark")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="after the first record: an unfinished copy is ended then")
    parser.add_argument("--no-touch", action="store_true", help="do not write to free memory first")
    parser.add_argument("--folder", type=Path, help="where clusters and buffers lie; a temporary folder otherwise")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    return parser.parse_args(given)


def over(line: Line, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Clusters at both ends of a new link, filled, all rounds."""
    folder.mkdir(parents=True)
    names = ("workload", "sides", "inline_bytes", "rounds", "scale", "seconds", "tls")
    (folder / "task.json").write_text(json.dumps({name: getattr(options, name) for name in names}))
    facts = {"link": {**asdict(line), "tls": options.tls}}
    say(f"link: {bars.link_label(facts)}, {line.bits_per_second / 1e6:g} Mbit/s")
    with link(line) as ends:
        try:
            _inside(ends, ends.far, "benchmarks.wan.far", "start", str(folder), *(["tls"] if options.tls else []))
            _inside(ends, ends.far, "benchmarks.wan.far", "fill", options.workload, str(options.scale))
            _inside(ends, ends.near, "benchmarks.wan.near", str(folder / "task.json"), str(folder / "result.json"))
        finally:
            _inside(ends, ends.far, "benchmarks.wan.far", "stop", str(folder), check=False)
    entry = json.loads((folder / "result.json").read_text())
    shutil.rmtree(folder)
    return {**facts, **entry, "taken_at": now()}


def _inside(ends: Ends, end: str, module: str, *words: str, check: bool = True) -> None:
    subprocess.run(ends.command(end, sys.executable, "-m", module, *words), cwd=ROOT, check=check, stdin=subprocess.DEVNULL)


def main(given: Sequence[str] | None = None) -> int:
    """Measure each link, print the table; 1 when a round failed, 2 when a link cannot be emulated here."""
    options = arguments(given)
    try:
        needed("openssl" if options.tls else "gcc")
    except MirrorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    with terminal_progress() as progress:
        for kind in (f"kafka-{DEFAULT_VERSION}", JARS):
            ensure_jars(kind, progress)
    named = ("rounds", "scale", "sides", "seconds", "inline_bytes")
    document: dict[str, Any] = {
        "schema": results.SCHEMA, "started_at": now(), "machine": machine.facts(), "versions": machine.versions(), "mm2": reasons(),
        "options": {name: getattr(options, name) for name in named}, "workloads": [],
    }  # fmt: skip
    document["touched_bytes"] = 0 if options.no_touch else machine.touch_memory()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that brokers, mirrors and the link are ended
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="mirror-wan-"))).absolute()
    try:
        for number, loss in enumerate(float(text) for text in options.loss.split(",")):
            line = Line(options.round_trip_ms, options.bits_per_second, loss, options.congestion)
            document["workloads"].append(over(line, options, folder / f"link-{number}"))
            results.save(options.output, document)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    table.show(document)
    bars.write_all(document, options.output.parent)
    say(f"results: {options.output}, chart beside it")
    return int(any("failed" in found for entry in document["workloads"] for found in entry["rounds"]))


if __name__ == "__main__":
    sys.exit(main())
