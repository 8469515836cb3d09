"""Copies the package, changes one copy at a time, and lets a named part of the real tests judge it."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mirror_pipeline
from tests.mutants.bench import PRELOAD, judge
from tests.mutants.mutants import MODEL, Mutant

ROOT = Path(__file__).parents[2]
PACKAGE = Path(mirror_pipeline.__file__).parent
BENCHES = 2
SECONDS = 900.0
MODEL_STORIES = {"whole": "12", "broken": "300"}
"""The first stories of the model; the whole build passes them, a broken one fails among them."""
QUIET = [
    "-x", "-q", "--no-header", "--tb=short", "--show-capture=no", "--durations=0", "--durations-min=99", "-p", "no:cacheprovider",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
]  # fmt: skip


class MutantStale(Exception):
    """The code that a mutant changes is not there, or is there twice: write the mutant anew."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a build did: pytest's exit code and what it printed."""

    code: int
    text: str

    @property
    def failed_tests(self) -> str:
        """The lines that name what failed."""
        return "\n".join(line for line in self.text.splitlines() if line.startswith(("FAILED", "ERROR")))

    def caught(self, mutant: Mutant) -> bool:
        """Whether the right test failed, for the right reason."""
        return self.code == 1 and mutant.test.split("::")[-1] in self.failed_tests and bool(re.search(mutant.says, self.text))


class Workshop:
    """Builds and judges, two at a time; ``forked`` benches are fast, but cannot hold tests that start Spark."""

    def __init__(self, *, forked: bool) -> None:
        self._forked = forked
        self._folder = Path(tempfile.mkdtemp(prefix="mirror-mutants-"))
        self._pool = ThreadPoolExecutor(BENCHES if forked else 1, "bench")
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(PRELOAD)
        self._number = 0

    def whole(self, tests: Sequence[str]) -> Future[Verdict]:
        """The package as it is."""
        return self._pool.submit(self._judge, self._copy(), tests, "whole")

    def broken(self, mutant: Mutant) -> Future[Verdict]:
        """The package with one change. Raises MutantStale."""
        copy = self._copy()
        patch(copy / PACKAGE.name / mutant.file, mutant)
        return self._pool.submit(self._judge, copy, [mutant.test], "broken")

    def _copy(self) -> Path:
        self._number += 1
        copy = self._folder / str(self._number)
        shutil.copytree(PACKAGE, copy / PACKAGE.name)  # with its compiled files: they are valid as long as the times are
        return copy

    def _judge(self, copy: Path, tests: Sequence[str], state: str) -> Verdict:
        environment = {
            "PYTHONPATH": str(copy),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "hypothesis"),  # a mutant's failures are nobody else's examples
            "MIRROR_MODEL_SEED": "0",
            "MIRROR_MODEL_EXAMPLES": MODEL_STORIES[state],
        }
        arguments = [*QUIET, "--hypothesis-profile=ci", "-o", f"pythonpath={copy} {ROOT}", *tests]
        verdict = self._fork(copy, arguments, environment) if self._forked else self._start(arguments, environment)
        shutil.rmtree(copy, ignore_errors=True)
        return verdict

    def _fork(self, copy: Path, arguments: Sequence[str], environment: dict[str, str]) -> Verdict:
        output = copy / "output.txt"
        folders = {Path(test.partition("::")[0]).parts[1] for test in arguments if test.startswith("tests/")}
        near = ["--confcutdir", f"{ROOT}/tests/{folders.pop()}"] if len(folders) == 1 else []  # without the fixtures for brokers
        process = self._processes.Process(
            target=judge, args=(str(copy), str(ROOT), [*near, *arguments], environment, str(output)), daemon=True
        )
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        return Verdict(process.exitcode if process.exitcode is not None else -1, output.read_text() if output.exists() else "")

    @staticmethod
    def _start(arguments: Sequence[str], environment: dict[str, str]) -> Verdict:
        command = [sys.executable, "-m", "pytest", "--slow", "all", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return Verdict(done.returncode, done.stdout + done.stderr)

    def close(self) -> None:
        """End, and remove the copies."""
        self._pool.shutdown(cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def patch(path: Path, mutant: Mutant) -> None:
    """Change the one place. Raises MutantStale."""
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise MutantStale(f"{mutant.name}: {mutant.file} holds {text.count(mutant.old)} times: {mutant.old!r}")
    path.write_text(text.replace(mutant.old, mutant.new))
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def parts(mutants: Sequence[Mutant]) -> list[str]:
    """The tests that judge these mutants, each once; the model last."""
    return sorted({mutant.test for mutant in mutants}, key=lambda test: (test == MODEL, test))
