"""Every ending is one line, a hint, and the right exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mirror_pipeline import errors
from mirror_pipeline.cli.errors import UNEXPECTED, describe
from mirror_pipeline.halts import Halt
from tests.support.cli_fakes import Cli, FakeMirror

TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.MirrorError)]


def _made(kind: type[errors.MirrorError]) -> errors.MirrorError:
    if kind is errors.TopicHalted:
        return Halt("orders", "it\nbroke", "mend it").error()
    extra: dict[type[errors.MirrorError], tuple[object, ...]] = {
        errors.ClusterUnreachable: ("east",), errors.WrongCluster: ("east",), errors.BrokerError: (29, "TOPIC_AUTHORIZATION_FAILED"),
    }  # fmt: skip
    if kind in (errors.WrongCluster, errors.Stranger):
        return kind(*extra.get(kind, ()), "it\nbroke", "theirs", hint="mend it")  # type: ignore[arg-type, misc, call-arg]
    return kind(*extra.get(kind, ()), "it\nbroke", hint="mend it")  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_each_error_is_a_line_and_a_hint(cli: Cli, kind: type[errors.MirrorError]) -> None:
    error = _made(kind)
    ended = cli("lag", mirrors=[FakeMirror(error=error)])
    lines = "error: it\nerror: broke" if kind is errors.ConfigError else "error: it broke"  # a file has many problems at once
    assert (ended.code, ended.out, ended.err) == (error.exit_code, "", f"{lines}\nhint: mend it\n")


def test_exit_codes_of_the_tree() -> None:
    codes = {kind.__name__: kind.exit_code for kind in TREE}
    assert {name for name, code in codes.items() if code == 2} == {"UsageError", "ConfigError"}
    assert {name for name, code in codes.items() if code == 3} == {"ClusterUnreachable", "WrongCluster"}
    assert {codes["ProblemFound"], codes["TopicHalted"], codes["LaneBusy"], codes["BufferUnusable"], codes["NothingSelected"]} == {1}


def test_with_json_the_error_is_also_the_document(cli: Cli) -> None:
    ended = cli("status", "--json", mirrors=[FakeMirror(error=errors.ClusterUnreachable("east", "east is silent", hint="start it"))])
    assert ended.json == {"error": {"message": "east is silent", "hint": "start it", "exit_code": 3}}
    assert ended.err == "error: east is silent\nhint: start it\n"
    assert ended.code == 3


def test_the_unexpected_is_one_line_and_points_at_debug(cli: Cli) -> None:
    ended = cli("lag", mirrors=[FakeMirror(error=ZeroDivisionError("by zero"))])
    assert ended.code == UNEXPECTED == 70
    assert ended.err == "error: internal error: ZeroDivisionError: by zero\nhint: run it again with --debug and report the output\n"


@pytest.mark.parametrize("words", [("--debug", "lag"), ("lag", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(cli: Cli, words: tuple[str, ...]) -> None:
    ended = cli(*words, mirrors=[FakeMirror(error=ZeroDivisionError("by zero"))])
    assert "Traceback" in ended.err and "cli_fakes.py" in ended.err
    assert ended.code == UNEXPECTED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--onc"), "--once"),
        (("nonsense",), "nonsense"),
        (("backfill", "--mirror", "m"), "Missing option"),
        (("run", "--lane", "x"), "valid integer"),
        (("run", "--once", "--for", "30m"), "cannot be combined"),
        (("run", "--for", "soon"), "not a duration"),
        (("lag", "--watch", "--json"), "cannot be combined"),
        (("plan", "-c", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("-c", "elsewhere.yaml", "plan"), "elsewhere.yaml: no such file"),
        (("plan",), "mirror.yaml: no such file"),
        (("up", "-c", "nowhere.yaml"), "nowhere.yaml: no such file"),
    ],
)
def test_usage_errors(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    ended = cli(*words)
    assert ended.code == 2
    lines = ended.err.splitlines()
    assert lines[0].startswith("error: ") and said in lines[0]
    assert lines[1].startswith("hint: ") and len(lines) == 2


def test_unknown_mirror_names_the_nearest(cli: Cli) -> None:
    ended = cli("lag", "-m", "eats", mirrors=[FakeMirror("east"), FakeMirror("west")])
    assert ended.code == 2
    assert "no mirror 'eats'" in ended.err and "did you mean 'east'? It has: east, west" in ended.err


def test_no_words_show_the_help(cli: Cli) -> None:
    ended = cli()
    assert ended.code == 2 and "Usage: mirror" in ended.out and ended.err == ""


def test_interrupted() -> None:
    assert describe(KeyboardInterrupt()).exit_code == 130


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    heavy = ["pyspark", "dagster", "deltalake", "pyarrow", "pandas", "numpy", "confluent_kafka", "aiokafka", "kafka"]
    program = (
        "import sys; from mirror_pipeline.cli.main import main; code = main(['run', '--help']);"
        f"found = [name for name in {heavy} if name in sys.modules]; print('LOADED', found, code)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == "LOADED [] 0"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    program = "import sys; from mirror_pipeline.cli.main import main; sys.stdin.readline(); sys.exit(main(['version']))"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin and process.stdout and process.stderr
    process.stdout.close()
    process.stdin.write("go\n")
    process.stdin.close()
    process.wait(60)
    assert process.stderr.read() == ""
    assert process.returncode == 141
