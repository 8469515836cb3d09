"""An emulated long link: two network namespaces of this machine, and a small C program that carries packets between them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror_pipeline.errors import UsageError
from mirror_pipeline.files import private_folder, refuse_forgeable
from mirror_pipeline.host import cache_folder

NEAR_ADDRESS, FAR_ADDRESS = "10.77.0.1", "10.77.0.2"
SOURCE = Path(__file__).parent / "link.c"
MTU = 1500  # link.c has room for packets of up to 2,048 bytes
QUEUE_BYTES = 50_000_000  # in front of the line, as long as its bandwidth-delay product twice over
UP_SECONDS = 20.0
CONGESTION = "cubic"
"""Linux's own choice. A host may be set to another, which would make figures of two hosts different things."""
ROOT_HINT = "run it with sudo, or in a container with the capabilities NET_ADMIN and SYS_ADMIN"


@dataclass(frozen=True, slots=True)
class Line:
    """A link: round trip, rate of each direction, share of packets lost in each; the senders' congestion control."""

    round_trip_ms: float
    bits_per_second: float
    loss: float = 0.0
    congestion: str = CONGESTION


def needed(*more: str) -> None:
    """Raise UsageError, naming what is missing, where a link cannot be emulated; ``more`` are further programs."""
    missing = sorted({name for name in ("gcc", "ip", *more) if shutil.which(name) is None})
    if missing:
        raise UsageError(f"the emulated link needs {' and '.join(missing)}", hint="install gcc (with libc headers), iproute2, openssl")
    if os.geteuid() != 0:
        raise UsageError("the emulated link needs root: it makes network namespaces", hint=ROOT_HINT)
    if not Path("/dev/net/tun").exists():
        raise UsageError("there is no /dev/net/tun", hint="modprobe tun, or give the container that device")


def _is_ours(path: Path) -> bool:
    """It runs as root: only what no other user can have written."""
    try:
        refuse_forgeable(path)
    except OSError:
        return False
    return True


def program() -> Path:
    """The compiled emulator, from the cache if it was built from the same source."""
    text = SOURCE.read_bytes()
    path = cache_folder() / "benchmarks" / f"link-{hashlib.sha256(text).hexdigest()[:12]}"
    if not _is_ours(path):
        private_folder(path.parent)
        fresh = path.with_suffix(f".{os.getpid()}")
        done = subprocess.run(["gcc", "-O2", "-o", str(fresh), str(SOURCE)], capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.splitlines() or ["no message"])[0]
            raise UsageError(f"gcc cannot compile {SOURCE.name}: {said}", hint="install libc headers")
        fresh.chmod(0o755)
        fresh.replace(path)
    return path


@dataclass(frozen=True, slots=True)
class Ends:
    """The namespaces at both ends of a link that is up, and their addresses on it."""

    near: str
    far: str
    near_address: str = NEAR_ADDRESS
    far_address: str = FAR_ADDRESS

    def command(self, end: str, *command: str) -> list[str]:
        """A command line that runs ``command`` in a namespace."""
        return ["ip", "netns", "exec", end, *command]


@contextlib.contextmanager
def link(line: Line) -> Iterator[Ends]:
    """Two namespaces joined by ``line``; both and the emulator are gone afterwards."""
    with links([line]) as (ends,):
        yield ends


@contextlib.contextmanager
def links(lines: Sequence[Line]) -> Iterator[list[Ends]]:
    """One near end with a link to each of several far ones."""
    needed()
    near = f"mirror-near-{os.getpid()}"
    up = [Ends(near, f"mirror-far{number}-{os.getpid()}", f"10.77.{number}.1", f"10.77.{number}.2") for number in range(len(lines))]
    emulators: list[subprocess.Popen[str]] = []
    try:
        _add(near)
        for number, (line, ends) in enumerate(zip(lines, up, strict=True)):
            _add(ends.far)
            emulators.append(_emulator(line, ends))
            _ip("-n", near, "link", "set", "wan", "name", f"wan{number}")
            _route(near, f"wan{number}", line, ends.near_address, ends.far_address)
            _route(ends.far, "wan", line, ends.far_address, ends.near_address)
        yield up
    finally:
        for emulator in emulators:
            emulator.terminate()
            emulator.wait()
        for end in (near, *(ends.far for ends in up)):
            subprocess.run(["ip", "netns", "del", end], check=False, capture_output=True)


def _add(end: str) -> None:
    _ip("netns", "add", end)
    _ip("-n", end, "link", "set", "lo", "up")


def _emulator(line: Line, ends: Ends) -> subprocess.Popen[str]:
    words = [f"{line.round_trip_ms / 2:g}", f"{line.bits_per_second:.0f}", f"{line.loss:g}", str(QUEUE_BYTES)]
    command = [str(program()), ends.near, ends.far, *words]
    emulator = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert emulator.stdout is not None
    if emulator.stdout.readline().strip() != "up":
        raise UsageError("the emulated link did not come up", hint=ROOT_HINT)
    return emulator


def _route(end: str, device: str, line: Line, own: str, other: str) -> None:
    _ip("-n", end, "addr", "add", own, "peer", other, "dev", device)
    _ip("-n", end, "link", "set", device, "mtu", str(MTU), "txqueuelen", "10000", "up")
    _ip("-n", end, "route", "replace", other, "dev", device, "src", own, "congctl", line.congestion)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=UP_SECONDS)
    if done.returncode:
        raise UsageError(f"ip {' '.join(words)}: {done.stderr.strip()}", hint=ROOT_HINT)
