"""What a campaign did and saw: numbered faults, the account of records, one line of the summary table."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

COLUMNS = ("campaign", "seed", "faults", "seconds", "records", "lost", "doubled", "order", "unexplained", "verdict")


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault; ``at`` is seconds since the campaign's start."""

    number: int
    at: float
    kind: str
    detail: str


@dataclass(slots=True)
class Account:
    """Every record of the campaign, counted. All but ``records`` must be 0."""

    records: int = 0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    unexplained: int = 0
    details: list[str] = field(default_factory=list)

    def tell(self, what: str) -> None:
        """Keep one line of what is wrong."""
        if len(self.details) < 100:
            self.details.append(what)

    def unexplain(self, what: str, count: int = 1) -> None:
        """Count something that must not be."""
        self.unexplained += count
        self.tell(what)

    def add(self, other: Account) -> None:
        """Sum up."""
        self.records += other.records
        self.lost += other.lost
        self.doubled += other.doubled
        self.disordered += other.disordered
        self.unexplained += other.unexplained
        self.details += other.details

    @property
    def clean(self) -> bool:
        """Nothing lost, duplicated, out of order or unexplained."""
        return not (self.lost or self.doubled or self.disordered or self.unexplained)


@dataclass(slots=True)
class CampaignReport:
    """The report of one campaign. ``ends`` are runs that ended although their driver and JVM were not harmed."""

    campaign: str
    seed: int
    wanted: int
    faults: list[Fault] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    ends: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    runs: int = 0
    seconds: float = 0.0
    verdict: str = "not finished"
    began: float = field(default_factory=time.monotonic)

    def fault(self, kind: str, detail: str = "") -> Fault:
        """Number, print and keep a fault."""
        fault = Fault(len(self.faults) + 1, round(time.monotonic() - self.began, 2), kind, detail)
        self.faults.append(fault)
        self.say(f"seed {self.seed} fault {fault.number} at {fault.at:.1f} s: {kind} {detail}")
        return fault

    def note(self, what: str) -> None:
        """Print and keep a remark."""
        self.notes.append(what)
        self.say(what)

    def say(self, what: str) -> None:
        """Print one line: to standard error, which reaches the terminal from a worker of pytest-xdist too."""
        print(f"{self.campaign} {what}", file=sys.__stderr__, flush=True)

    def close(self) -> None:
        """Judge."""
        self.seconds = round(time.monotonic() - self.began, 1)
        enough = len(self.faults) >= self.wanted
        self.verdict = "ok" if self.account.clean and enough else "too few faults" if self.account.clean else "FAILED"

    def kinds(self) -> dict[str, int]:
        """How many faults of each kind."""
        return dict(sorted(Counter(fault.kind for fault in self.faults).items()))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        body = asdict(self)
        del body["began"]
        return {**body, "kinds": self.kinds()}


def save(folder: Path, report: CampaignReport) -> None:
    """Keep the report for the summary of the session."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{report.campaign}-{report.seed}.json").write_text(json.dumps(report.to_json(), indent=1))


def load_all(folder: Path) -> list[dict[str, Any]]:
    """All kept reports, oldest first."""
    paths = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_text()) for path in paths]


def row_of(body: dict[str, Any]) -> tuple[str, ...]:
    """The summary line of a kept report."""
    a = body["account"]
    return (
        body["campaign"], str(body["seed"]), str(len(body["faults"])), f"{body['seconds']:.0f}", f"{a['records']:,}",
        str(a["lost"]), str(a["doubled"]), str(a["disordered"]), str(a["unexplained"]), body["verdict"],
    )  # fmt: skip


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows under their headings, aligned."""
    widths = [max(len(row[i]) for row in [COLUMNS, *rows]) for i in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [COLUMNS, *rows]]
