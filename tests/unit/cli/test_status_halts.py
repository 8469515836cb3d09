"""A halted topic is shown as halted, with its code, its reason and what ends it, by every command that looks."""

from __future__ import annotations

from dataclasses import replace

from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.reports import TopicPlan
from tests.support.cli_fakes import PLAN, Cli, FakeMirror

WHY = {"state": "halted", "code": "trimmed", "reason": "the source deleted offsets [3, 9)", "hint": "mirror resolve --accept trimmed"}
STOPPED = TopicLag("orders", "east.orders", (PartitionLag(0, 0, 1038, 0, 1038),), None, **WHY)  # type: ignore[arg-type]
FINE = TopicLag("pay", "east.pay", (PartitionLag(0, 5, 5, 5, 0),), 0.0)


class Lagging(FakeMirror):
    answer: MirrorLag

    def lag(self) -> MirrorLag:
        return self.answer


def lagging(*topics: TopicLag, seconds: float | None = None, notes: tuple[str, ...] = ()) -> Lagging:
    mirror = Lagging()
    mirror.answer = MirrorLag("m", topics, seconds, notes)
    return mirror


def test_lag_says_that_a_topic_is_halted(cli: Cli) -> None:
    said = cli("lag", mirrors=[lagging(STOPPED, FINE)]).out
    assert "orders halted (trimmed): the source deleted offsets [3, 9)" in said
    assert "hint: mirror resolve --accept trimmed" in said
    assert "m: 1 topic halted, 1,038 records to go" in said
    assert "0.0 s old" not in said and "up to date" not in said


def test_a_halted_topic_without_lag_is_not_up_to_date(cli: Cli) -> None:
    halted = replace(STOPPED, partitions=(PartitionLag(0, 5, 5, 5, 0),))
    assert "m: 1 topic halted, the others up to date" in cli("lag", mirrors=[lagging(halted, FINE)]).out
    alone = cli("lag", mirrors=[lagging(halted)]).out
    assert "m: 1 topic halted" in alone and "up to date" not in alone


def test_lag_for_programs(cli: Cli) -> None:
    (mirror,) = cli("lag", "--json", mirrors=[lagging(STOPPED, FINE, notes=("lane-0: the last run failed: no broker",))]).json["mirrors"]
    assert (mirror["halted"], mirror["notes"]) == (1, ["lane-0: the last run failed: no broker"])
    assert {key: mirror["topics"][0][key] for key in WHY} == WHY
    assert mirror["topics"][1]["state"] == "ok"


def test_lag_says_how_the_last_run_ended(cli: Cli) -> None:
    note = "lane-0: the last run failed: no broker"
    assert note in cli("lag", mirrors=[lagging(FINE, notes=(note,))]).out


def test_a_plan_with_a_halted_topic_is_a_problem(cli: Cli) -> None:
    row = TopicPlan("orders", "east.orders", 1, 1038, None, **WHY)  # type: ignore[arg-type]
    mirror = FakeMirror(the_plan=replace(PLAN, topics=(row,), notes=("lane-0: the last run failed: no broker",)))
    ended = cli("plan", mirrors=[mirror])
    assert ended.code == 1
    for said in ("orders halted (trimmed): the source deleted", "hint: mirror resolve", "1 halted", "lane-0: the last run failed"):
        assert said in ended.out
    (answer,) = cli("plan", "--json", mirrors=[mirror]).json["mirrors"]
    assert {key: answer["topics"][0][key] for key in WHY} == WHY
