"""Source hazards: each ends in a halt with its code, or is gone past with a gap on record; nothing is lost in silence."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lane_file import read_lane_file
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.account import account_ledger, compare_values
from tests.faults.campaign import ENGINE, reading, with_spark
from tests.faults.child import MirrorChild, wait_for
from tests.faults.ground import Ground
from tests.faults.hazards import KINDS, Hazard, Old
from tests.faults.report import CampaignReport

AT_ONCE = 5
"""Instances of every kind in one round: a round costs three starts of Spark, whatever happens in it."""
RUN_SECONDS = 300.0
MIRRORS = {"m": "halt", "g": "record_gap"}
QUICK_RETENTION = {"log.retention.check.interval.ms": "1000"}


def write_config(folder: Path, ground: Ground, seed: int) -> Path:
    """Two mirrors: one halts at a loss, one records it and continues."""
    east, west = ({"bootstrap_servers": cluster.bootstrap_servers} for cluster in (ground.source, ground.target))
    topics = {name: ["load-.*" if name == "m" else "gap-.*"] for name in MIRRORS}
    configs = {"sync": False}  # or the mirror takes back the limit that a hazard has lowered
    mirrors = [
        {"name": name, "source": "east", "target": "west", "topics": {"include": topics[name], "configs": configs}, "on_loss": loss}
        for name, loss in MIRRORS.items()
    ]
    engine = {**ENGINE, **reading(seed), **with_spark()}
    body = {"clusters": {"east": east, "west": west}, "buffer": {"uri": "./buffer"}, "engine": engine, "mirrors": mirrors}
    folder.mkdir(parents=True)
    (folder / "mirror.yaml").write_text(json.dumps(body))
    return folder / "mirror.yaml"


class Round:
    """Some instances of every kind, led through their misfortune together."""

    def __init__(self, report: CampaignReport, ground: Ground, folder: Path, first: int, count: int) -> None:
        self.report, self.ground = report, ground
        self.config = write_config(folder, ground, report.seed + first // AT_ONCE)
        chance = random.Random(f"{report.seed}/{first}")
        self.hazards = [kind(ground, first + n, chance) for kind in KINDS for n in range(count)]

    def play(self) -> None:
        """All of it."""
        self._each("prepare")
        self._run(self.hazards, lambda hazard: "")
        self._each("strike")
        for hazard in self.hazards:
            self.report.fault(hazard.name, hazard.topic)
        self._plan_warns()
        self._crash_source()
        self._run(self.hazards, lambda hazard: hazard.code, meanwhile=lambda: self._each("during"))
        self._each("mend")
        self._accept()
        self._each("more")
        self._run(self.hazards, lambda hazard: "")
        self._account()

    def _each(self, name: str) -> None:
        for hazard in self.hazards:
            getattr(hazard, name)()

    def _crash_source(self) -> None:
        source = self.ground.source
        source.kill()
        for hazard in self.hazards:
            hazard.cut(source.brokers[0].data)
        source.start()
        self.ground.connect()
        self._each("rise")

    def _cli(self, *arguments: str) -> tuple[int, Any, str]:
        child = MirrorChild(self.config, *arguments, "--json")
        try:
            code = child.wait(RUN_SECONDS)
            text = child.out.read_text()
        finally:
            child.close()
        return code, json.loads(text) if text.strip() else {}, child.last_words()

    def _plan_warns(self) -> None:
        _, body, _ = self._cli("plan")
        texts = {t["topic"]: " ".join(t["warnings"] + t["blockers"]) for m in body.get("mirrors", []) for t in m["topics"]}
        for hazard in self.hazards:
            if isinstance(hazard, Old) and "retention" not in texts.get(hazard.topic, ""):
                self.ground.account.unexplain(f"plan does not warn of {hazard.topic}: the target's retention deletes its records")

    def _run(self, hazards: Sequence[Hazard], wanted: Callable[[Hazard], str], meanwhile: Callable[[], None] | None = None) -> None:
        """``run --once`` of both mirrors; every topic must end as wanted."""
        began = time.time()

        failures: list[Exception] = []

        def beside() -> None:
            try:
                wait_for("the lane to run", lambda: self._started() > began, RUN_SECONDS)
                if meanwhile is not None:
                    meanwhile()
            except Exception as error:  # noqa: BLE001 - raised below, in the campaign's own thread
                failures.append(error)

        helper = threading.Thread(target=beside, daemon=True)
        helper.start()
        code, body, words = self._cli("run", "--once")
        helper.join(RUN_SECONDS)
        if failures:
            raise failures[0]
        found = {t["topic"]: t for m in body.get("mirrors", []) for t in m["topics"]}
        if not found:
            raise AssertionError(f"mirror run ended with {code}: {words}")
        for hazard in hazards:
            state, want = found.get(hazard.topic, {"state": "missing"}), wanted(hazard)
            halted = state["state"] == "halted"
            right = (halted and want in ("*", state.get("code")) and state["reason"] and state["hint"]) if want else state["state"] == "ok"
            if not right:
                self.ground.account.unexplain(f"{hazard.topic}: wanted {want or 'ok'}, the run reports {state}")

    def _started(self) -> float:
        files = [read_lane_file(store) for store in Mirror(load_config(self.config), "m").flow.lane_stores()]
        return max((file.started or 0.0 for file in files), default=0.0)

    def _accept(self) -> None:
        """By command for the first of each kind, by call for the others."""
        mirror, seen = Mirror(load_config(self.config), "m"), set()
        for hazard in self.hazards:
            if not hazard.accept:
                continue
            if hazard.name not in seen:
                seen.add(hazard.name)
                code, _, words = self._cli("resolve", "--mirror", "m", "--topic", hazard.topic, "--accept", hazard.code)
                if code:
                    self.ground.account.unexplain(f"resolve {hazard.topic}: exit code {code}: {words}")
                continue
            try:
                mirror.resolve(hazard.topic, hazard.code)
            except MirrorError as problem:
                self.ground.account.unexplain(f"resolve {hazard.topic}: {problem}")

    def _account(self) -> None:
        account, config = self.ground.account, load_config(self.config)
        for hazard in self.hazards:
            target = self.ground.names(hazard.target)
            compare_values(hazard.judge(target), target, account, topic=hazard.topic)
        for name in MIRRORS:
            mine = [hazard for hazard in self.hazards if hazard.mirror == name]
            mirror = Mirror(config, name)
            causes = frozenset[Any]().union(*(hazard.causes for hazard in mine))
            account_ledger(mirror, account, allowed=causes)
            self._gaps(mine, [gap for store in mirror.flow.lane_stores() for gap in Ledger(store).gaps()])

    def _gaps(self, hazards: Sequence[Hazard], gaps: Sequence[Any]) -> None:
        """Exactly the losses that had to be are on record."""
        for hazard in hazards:
            found = {gap.cause for gap in gaps if gap.topic == hazard.topic}
            if found != set(hazard.causes):
                self.ground.account.unexplain(f"{hazard.topic}: gaps on record for {sorted(found)}, wanted {sorted(hazard.causes)}")


def test_source_hazards(plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    report = plan("hazards")
    each, report.wanted = report.wanted, report.wanted * len(KINDS)
    (source,) = cluster_factory(names=["a"], brokers=1, heap="384m")  # one broker: logs are cut short by hand, which replicas would undo
    (target,) = cluster_factory(names=["b"], config=QUICK_RETENTION)
    ground = Ground(source, target, report.account)
    done = 0
    try:
        while done < each:
            count = min(AT_ONCE, each - done)
            Round(report, ground, tmp_path / f"round-{done}", done, count).play()
            report.runs += 3
            done += count
            for topic in [t for t in ground.topics() if t.startswith(("load-", "gap-"))]:
                ground.delete(topic)
    except Exception as problem:  # noqa: BLE001 - part of the result
        report.account.unexplain(f"{type(problem).__name__}: {problem}")
    report.close()
    assert report.verdict == "ok", "\n".join([report.verdict, *report.account.details])
