"""A real Prometheus with the project's rules, quickened."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from mirror_pipeline.local.embedded.ports import free_port

RULES = Path(__file__).parents[2] / "observability"


def missing() -> str:
    """Why there can be no Prometheus here; "" if there can."""
    return "" if shutil.which("prometheus") else "prometheus is not installed (Debian's package prometheus)"


def quickened(rules: str) -> str:
    """The rules with waiting times of a second and limits of three."""
    return re.sub(r"(seconds )> (300|600)\b", r"\1> 3", re.sub(r"for: \w+", "for: 1s", rules))


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[str]:
    """Scrapes the exporter at ``port`` every second; gives its own address."""
    folder.mkdir()
    for name in ("alerts.yml", "mirrormaker-names.yml"):
        (folder / name).write_text(quickened((RULES / name).read_text()))
    config = (RULES / "prometheus.yml").read_text().replace(": 15s", ": 1s").replace("9308", str(port))
    (folder / "prometheus.yml").write_text(config)
    own = free_port()
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{own}"], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{own}"
    finally:
        process.terminate()
        process.wait(30)


def firing(address: str) -> set[str]:
    """Names of the alerts that fire."""
    with urlopen(f"{address}/api/v1/alerts", timeout=10) as answer:  # noqa: S310 - an address of our own
        alerts = json.load(answer)["data"]["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def series(address: str, query: str) -> list[float]:
    """The values that a query gives now."""
    with urlopen(f"{address}/api/v1/query?query={query}", timeout=10) as answer:  # noqa: S310
        return [float(row["value"][1]) for row in json.load(answer)["data"]["result"]]
