"""A class-data-sharing archive for Spark's Java process: 12,000 classes that are parsed and verified once, not at every start (JEP 350).

``python -m mirror_pipeline.execution.class_archive`` makes it, once for each Java and each installation of Spark, in the cache folder.
Java itself refuses an archive of another Java or other jars, and starts without it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.execution.java import find_java, option
from mirror_pipeline.files import Forgeable, file_lock, private_folder, refuse_forgeable
from mirror_pipeline.host import cache_folder

DUMP_SECONDS = 120.0  # 4 s on an idle machine
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # no warning about classes that cannot be archived, or an archive that does not fit
KEPT_FILES = 4  # archives, of 110 MB each: every virtual environment has its own


def archive_path() -> Path:
    """Where the archive for this Java and this Spark is kept, whether it exists or not. Raises UsageError without Java.

    Java refuses an archive once a jar has another size or time than when it was made, as after a new installation in the same folder.
    """
    import pyspark

    java = find_java().resolve()
    modules = java.parent.parent / "lib" / "modules"
    state = modules.stat() if modules.exists() else java.stat()
    spark = Path(pyspark.__file__).parent
    jars = [(jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(spark.glob("jars/*.jar"))]
    parts = (str(java), state.st_size, state.st_mtime_ns, str(spark), jars)
    return cache_folder() / "classes" / f"spark-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.jsa"


def archive_options() -> str:
    """Options of Spark's JVM that use the archive; none when there is none, or one that another user could have written."""
    path = archive_path()
    try:
        refuse_forgeable(path)
    except (Forgeable, OSError):
        return ""
    return f"-Xshare:auto {QUIET} {option('-XX:SharedArchiveFile=', path)}"


def build() -> Path:
    """Make the archive unless it exists: run the jobs that a copy runs, and let Java write down the classes it has loaded.

    Raises:
        UsageError: no usable Java.
        MirrorError: Spark does not start, or Java writes no archive.
        OSError: the cache folder cannot be written.
    """
    path = archive_path()
    private_folder(path.parent)
    with file_lock(path.parent / ".lock"):
        if not archive_options():
            fresh = path.with_suffix(f".{os.getpid()}")
            try:
                _train(fresh)
                if not fresh.exists():
                    raise MirrorError("Java wrote no class archive", hint="Spark works without it, and starts slower")
                fresh.chmod(0o600)
                fresh.rename(path)
                _drop_old(path.parent)
            finally:
                fresh.unlink(missing_ok=True)
    return path


def _drop_old(folder: Path) -> None:
    """Remove all archives but the newest; a Java process that uses one keeps it open."""
    found = sorted(folder.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime)
    for path in found[:-KEPT_FILES]:
        path.unlink(missing_ok=True)


def _train(path: Path) -> None:
    from pyspark import SparkContext

    from mirror_pipeline.config import EngineConfig
    from mirror_pipeline.execution.spark import SparkRunner, build_session

    options = f"{QUIET} {option('-XX:ArchiveClassesAtExit=', path)}"
    session = build_session(EngineConfig(spark={"spark.driver.defaultJavaOptions": options}), app_name="class archive")
    runner = SparkRunner(session.sparkContext)
    runner.warm()
    for _ in range(3):
        runner.run_each(len, ["a", "bc"], name="train")
    gateway = SparkContext._gateway
    assert gateway is not None  # noqa: S101 - the session was started through it
    session.stop()
    gateway.shutdown()
    java = gateway.proc
    java.stdin.close()
    java.wait(DUMP_SECONDS)


def main() -> int:
    """Make the archive; an error is one line and an exit code."""
    try:
        build()
    except (MirrorError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
