"""Run ``mirror`` as on somebody else's host: another user, environment, mounts, limits, streams.

Everything happens in a mount namespace of the command's own, so nothing of this machine changes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import mirror_pipeline

UID = 12345
"""A user without an entry in the password file, as a container's often is."""
SECONDS = 120.0
READ_ONLY_ROOT = 'mount --bind "$FOLDER" "$FOLDER"; mount -o remount,bind,ro /'
"""Only the test's folder can be written."""


@dataclass(frozen=True, slots=True)
class Host:
    """What a host gives a command.

    ``mounts`` is code that root runs in the new namespace; ``start`` is code of the user that starts ``"$@"``; both for bash, both find
    the test's folder in ``$FOLDER``. The environment holds ``PATH``, ``FOLDER`` and ``env``, nothing else.
    """

    mounts: str = ""
    start: str = 'exec "$@"'
    env: Mapping[str, str] = field(default_factory=dict)

    def popen(self, folder: Path, *words: str) -> subprocess.Popen[str]:
        """``mirror words``, started in ``folder``, which the user owns; its own process group."""
        return self._start(folder, sys.executable, "-P", "-m", "mirror_pipeline.cli", *words)

    def mirror(self, folder: Path, *words: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
        """``mirror words``, from start to end."""
        process = self.popen(folder, *words)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def _start(self, folder: Path, *command: str) -> subprocess.Popen[str]:
        environment = {"PATH": os.environ["PATH"], "FOLDER": str(folder), **self.env}
        drop = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
        user = [*drop, "env", "-i", *(f"{name}={value}" for name, value in environment.items()), "bash", "-c", self.start, "bash", *command]
        script = "\n".join(["set -e", _open_the_way(), self.mounts, 'cd "$FOLDER"', 'exec "$@"'])
        return subprocess.Popen(
            ["unshare", "-m", "bash", "-c", script, "host", *user], env={**os.environ, "FOLDER": str(folder)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip


def other_clock(folder: Path, ahead: float) -> dict[str, str]:
    """Environment of a command on a host whose clock is ``ahead`` seconds fast: for all its Python processes, Spark's workers as well."""
    site = folder / f"ahead-{ahead:.0f}"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(f"import time; now = time.time; time.time = lambda: now() + {ahead}")
    return {"PYTHONPATH": str(site)}


def missing() -> str:
    """Why this machine cannot play another host; empty when it can."""
    if os.geteuid() != 0:
        return "another user and mounts need root"
    tools = [tool for tool in ("unshare", "setpriv", "mount", "bash") if shutil.which(tool) is None]
    if tools:
        return f"needs {tools[0]}"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no mount namespace: {done.stderr.strip()}"


def _open_the_way() -> str:
    """Code that lets every user reach this interpreter and package: what of them is in a closed home moves into an open, empty one."""
    home = Path.home()
    paths = {Path(os.path.realpath(sys.executable)), Path(sys.prefix), Path(mirror_pipeline.__file__)}
    names = sorted({shlex.quote(path.relative_to(home).parts[0]) for path in paths if path.is_relative_to(home)})
    if not names or home == Path("/"):
        return ""
    at = shlex.quote(str(home))
    lines = ["hold=$(mktemp -d)", *(f"mkdir $hold/{name}; mount --bind {at}/{name} $hold/{name}" for name in names)]
    lines += [f"mount -t tmpfs -o mode=755 tmpfs {at}"]
    lines += [f"mkdir {at}/{name}; mount --move $hold/{name} {at}/{name}; rmdir $hold/{name}" for name in names]
    return "\n".join([*lines, "rmdir $hold"])
