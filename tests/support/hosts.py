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

UID = 12345
"""A user without an entry in /etc/passwd, as a container's often is."""
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Host:
    """What a host gives a command.

    ``mounts`` is shell code that root runs in the new namespace; ``start`` is shell code of the user that ends in ``"$@"``. Both find the
    test's folder in ``$FOLDER``.
    """

    mounts: str = ""
    start: str = 'exec "$@"'
    env: Mapping[str, str] = field(default_factory=dict)
    uid: int = UID


def missing() -> str:
    """Why this machine cannot play another host; empty when it can."""
    if os.geteuid() != 0:
        return "needs root"
    tools = [tool for tool in ("unshare", "setpriv", "mount") if shutil.which(tool) is None]
    if tools:
        return f"needs {tools[0]}"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no mount namespace: {done.stderr.strip()}"


def mirror_on(host: Host, folder: Path, *words: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """``mirror words`` on the host, started in ``folder``."""
    return run_on(host, folder, sys.executable, "-P", "-m", "mirror_pipeline.cli", *words, seconds=seconds)


def run_on(host: Host, folder: Path, *command: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """The command on the host, started in ``folder``, which its user owns."""
    environment = {"PATH": os.environ["PATH"], "FOLDER": str(folder), **host.env}
    drop = ["setpriv", "--reuid", str(host.uid), "--regid", str(host.uid), "--clear-groups"]
    user = [*drop, "env", "-i", *(f"{name}={value}" for name, value in environment.items()), "sh", "-c", host.start, "sh", *command]
    script = "\n".join(["set -e", _open_the_way(), host.mounts, f"cd {shlex.quote(str(folder))}", 'exec "$@"'])
    return subprocess.run(
        ["unshare", "-m", "bash", "-c", script, "host", *user],
        env={**os.environ, "FOLDER": str(folder)}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def _open_the_way() -> str:
    """Shell code that lets every user reach this interpreter: one in root's home is moved into an empty home of mode 0755."""
    home = Path.home()
    needed = {Path(os.path.realpath(sys.executable)).parent.parent, Path(sys.prefix)}
    lines = ["hold=$(mktemp -d)"]
    hidden = sorted({home / path.relative_to(home).parts[0] for path in needed if path.is_relative_to(home)})
    if not hidden:
        return ""
    names = [shlex.quote(path.name) for path in hidden]
    lines += [f"mkdir $hold/{name}; mount --bind {shlex.quote(str(home))}/{name} $hold/{name}" for name in names]
    lines += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(home))}"]
    lines += [f"mkdir {shlex.quote(str(home))}/{name}; mount --move $hold/{name} {shlex.quote(str(home))}/{name}" for name in names]
    return "\n".join(lines)
