"""An image without a container engine: a Dockerfile's own steps in roots made of Debian's packages, with mounts and chroot. Needs root."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUILD_SECONDS = 1800
# What an engine gives a build of the host's network: names and proxies.
NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/apt/apt.conf.d")
PASSED = re.compile(r"(?i)(pip_|https?_proxy|no_proxy)")
# A host whose proxy looks into TLS trusts authorities of its own: its lists for OpenSSL and for Java, under another path during a build.
TRUSTED, TRUSTED_THERE = "/etc/ssl/certs/ca-certificates.crt", "/run/trusted.crt"
JAVA_TRUSTED, JAVA_TRUSTED_THERE = "/etc/ssl/certs/java/cacerts", "/run/trusted.jks"
# The image debian:bookworm-slim leaves these out of every package.
SLIM = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*", "/usr/share/linda/*")


def missing() -> str:
    """Why no image can be built here; "" if one can."""
    if os.geteuid() != 0:
        return "an image's root is mounted, which only root may do"
    wanted = [tool for tool in ("debootstrap", "unshare", "chroot", "mount") if shutil.which(tool) is None]
    return f"needs {', '.join(wanted)} (Debian's packages)" if wanted else ""


@dataclass
class Stage:
    """One root that is being made, and what its steps have said."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    folder: str = "/"
    entry: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def steps_of(dockerfile: Path) -> list[tuple[str, str]]:
    """Instruction and the rest of each line; continued lines are one, comments none."""
    lines = [line for line in dockerfile.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [(head.upper(), rest.strip()) for head, _, rest in (line.strip().partition(" ") for line in text.splitlines())]


def build(dockerfile: Path, work: Path) -> Stage:
    """Carry out the steps; the last stage is the image. Raises CalledProcessError with the output of the step that fails."""
    debian = work / "debian"
    _checked(["debootstrap", "--variant=minbase", "bookworm", str(debian), *_archive()])
    (debian / "etc/dpkg/dpkg.cfg.d/slim").write_text("".join(f"path-exclude {path}\n" for path in SLIM))
    stages = {"debian:bookworm-slim": Stage(debian, {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})}
    stage = stages["debian:bookworm-slim"]
    for number, (what, rest) in enumerate(steps_of(dockerfile)):
        words = shlex.split(rest)
        if what == "FROM":
            stage = Stage(work / f"stage-{number}", dict(stages[words[0]].environment))
            _checked(["cp", "-a", str(stages[words[0]].root), str(stage.root)])
            stages[words[2] if len(words) > 2 else ""] = stage
        elif what == "RUN":
            _run(stage, rest)
        elif what == "COPY":
            _copy(stage, words, stages, dockerfile.parent)
        elif what == "ENV":
            stage.environment |= dict(word.split("=", 1) for word in words)
        elif what in ("USER", "WORKDIR", "ENTRYPOINT", "CMD"):
            _set(stage, what, rest)
        else:
            assert what in ("VOLUME", "EXPOSE"), what
    return stage


def _set(stage: Stage, what: str, rest: str) -> None:
    if what == "USER":
        stage.user = rest
    elif what == "WORKDIR":
        stage.folder = rest
        (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif what == "ENTRYPOINT":
        stage.entry = json.loads(rest)
    else:
        stage.command = json.loads(rest)


def _archive() -> list[str]:
    """Debian's archive as this host has it; debootstrap's own choice without one."""
    found = glob.glob("/etc/apt/sources.list.d/*") + ["/etc/apt/sources.list"]
    texts = [Path(name).read_text() for name in found if Path(name).is_file()]
    uris = [uri for text in texts for uri in re.findall(r"^(?:URIs: |deb (?:\[[^]]*\] )?)(\S+)", text, re.MULTILINE)]
    return [uri for uri in uris if re.search(r"/debian/?$", uri)][:1]


def _copy(stage: Stage, words: Sequence[str], stages: Mapping[str, Stage], context: Path) -> None:
    whence, omit = context, shutil.ignore_patterns("__pycache__")  # as .dockerignore says
    if words[0].startswith("--from="):
        whence, words = stages[words[0].removeprefix("--from=")].root, words[1:]
        omit = shutil.ignore_patterns()
    *names, to = words
    goal = stage.root / to.lstrip("/")
    for name in names:
        source = whence / name.lstrip("/")
        into = goal / source.name if to.endswith("/") else goal
        into.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, into, symlinks=True, dirs_exist_ok=True, copy_function=_copy_file, ignore=omit)
        else:
            _copy_file(source, into)


def _copy_file(source: str | Path, to: str | Path) -> None:
    """As a layer keeps it: rights, and the time in whole seconds."""
    shutil.copy2(source, to, follow_symlinks=False)
    if not Path(to).is_symlink():
        os.utime(to, (int(os.stat(source).st_mtime),) * 2)


def _run(stage: Stage, command: str) -> None:
    binds = [(path, path, True) for path in NETWORK if Path(path).exists()]
    passed = {name: value for name, value in os.environ.items() if PASSED.match(name)}
    if Path(TRUSTED).exists():
        binds.append((TRUSTED, TRUSTED_THERE, True))
        passed |= dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), TRUSTED_THERE)
    if Path(JAVA_TRUSTED).exists():
        binds.append((JAVA_TRUSTED, JAVA_TRUSTED_THERE, True))
        passed["JAVA_TOOL_OPTIONS"] = f"-Djavax.net.ssl.trustStore={JAVA_TRUSTED_THERE}"
    links = [(path, path, True) for path in [passed.get("PIP_FIND_LINKS", "")] if path and Path(path).exists()]
    _checked(inside(stage, ["/bin/sh", "-c", command], binds=binds + links, environment={**passed, "DEBIAN_FRONTEND": "noninteractive"}))


def inside(
    stage: Stage, command: Sequence[str], *, binds: Sequence[tuple[str, str, bool]] = (), environment: Mapping[str, str] | None = None,
    user: str = "", read_only: bool = False,
) -> list[str]:  # fmt: skip
    """The command line that runs a command in a stage's root, in a mount namespace of its own.

    Args:
        stage: whose root.
        command: what to run there.
        binds: paths of the host, where they are seen, and whether as read-only.
        environment: beside the stage's.
        user: ``number:number``; root without one.
        read_only: mount the root read-only, with a fresh ``/tmp`` as Docker makes one.
    """
    root = shlex.quote(str(stage.root))
    lines = ["set -e", "mount --make-rprivate /", f"mount --bind {root} {root}"]
    lines += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
    for path, to, fixed in binds:
        at = f"{root}{shlex.quote(to)}"
        make = f"mkdir -p {at}" if Path(path).is_dir() else f"mkdir -p $(dirname {at}); [ -e {at} ] || touch {at}"
        lines += [make, f"mount --rbind {shlex.quote(path)} {at}"] + ([f"mount -o remount,bind,ro {at}"] if fixed else [])
    if read_only:
        lines += [f"mount -o remount,bind,ro {root}", f"mount -t tmpfs -o noexec,nosuid,nodev tmpfs {root}/tmp"]
    names = {**stage.environment, **(environment or {})}
    words = ["env", "-i", *(f"{name}={value}" for name, value in names.items()), *command]
    who = [f"--userspec=+{user.replace(':', ':+')}", "--groups="] if user else []
    script = f"cd {shlex.quote(stage.folder)} && exec {shlex.join(words)}"
    lines.append("exec " + shlex.join(["chroot", *who, str(stage.root), "/bin/sh", "-c", script]))
    return ["unshare", "--mount", "/bin/sh", "-c", "\n".join(lines)]


def _checked(command: Sequence[str]) -> None:
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, text=True, timeout=BUILD_SECONDS, check=False, **both)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)[:300]}: exit code {done.returncode}\n{done.stdout[-4000:]}")
