"""What a local Spark session takes from its host: nothing that was set for another Spark, and folders that its user can write to."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_pipeline.errors import UsageError
from mirror_pipeline.execution.java import find_java, option
from mirror_pipeline.files import private_folder
from mirror_pipeline.host import cache_folder, passwd_entry, refuse_few_files, refuse_few_threads, temporary_cache, temporary_folder

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

# Another Spark's jars, cluster, listeners, login and Python; and what would warn, check or start the workers' Python in another way.
_OTHERS = re.compile(r"(SPARK|PYSPARK|HADOOP|YARN|HIVE)_|PYTHON(OPTIMIZE|WARNINGS|INSPECT|DEVMODE|STARTUP)$")
_KEPT = ("SPARK_LOCAL_DIRS",)
# Of the Java process that puts together Spark's command line and ends.
_LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# 300 jars, and connections.
SPARK_DESCRIPTORS = 512
SPARK_THREADS = 256
_USUAL_TMP = "/tmp"  # noqa: S108 - Java's own, whatever $TMPDIR says


@contextmanager
def environment(*, local: bool) -> Iterator[None]:
    """The variables with which Spark is started; those of this process come back afterwards.

    A local session needs only this package's Spark and Python. A cluster's session is the user's business: what he sets stays.
    """
    before = dict(os.environ)
    try:
        if local:
            for name in [name for name in before if _OTHERS.match(name) and name not in _KEPT]:
                del os.environ[name]
            os.environ |= {"SPARK_HOME": _spark(), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONSAFEPATH": "1"}
            if passwd_entry() is None:
                os.environ["SPARK_USER"] = _number()
        os.environ.setdefault("JAVA_HOME", str(find_java().resolve().parent.parent))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER_OPTIONS)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def folders() -> tuple[dict[str, str], str]:
    """Properties and Java options of a local session, where Java's own choice of folders does not suit this host.

    Raises:
        UsageError: no folder can be made, or too few files or threads can be opened.
    """
    refuse_few_files(SPARK_DESCRIPTORS)
    refuse_few_threads(SPARK_THREADS)
    properties, options = {}, ""
    entry = passwd_entry()
    if entry is None or not os.access(entry.pw_dir, os.W_OK | os.X_OK):
        home = _own_folder("spark")
        properties["spark.jars.ivy"] = f"{home}/ivy"
        options += " " + option("-Duser.home=", home)
    place = str(temporary_folder())
    if os.statvfs(place).f_flag & os.ST_NOEXEC:  # Java loads its native libraries from there
        place = _own_folder("tmp")
    if "," in place:
        raise UsageError(f"Spark cannot use the temporary folder {place}: a comma separates folders", hint="set TMPDIR to another")
    if place != _USUAL_TMP:
        properties["spark.local.dir"] = place
        options += " " + option("-Djava.io.tmpdir=", place)
    return properties, options


def log_in(gateway: JavaGateway) -> None:
    """Tell Hadoop's code in a local session's Java who the user is: it asks the password file, and ends where that knows nobody."""
    if passwd_entry() is None:
        hadoop = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
        hadoop.setLoginUser(hadoop.createRemoteUser(_number()))


def jars_of(folder: Path) -> dict[str, str]:
    """The property that brings jars into the session.

    Spark logs into Hadoop to copy ``spark.jars``, before :func:`log_in` can. A class path needs no login, but spoils the class archive.
    """
    if passwd_entry() is None:
        return {"spark.driver.extraClassPath": f"{folder}/*"}
    return {"spark.jars": ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))}


def _number() -> str:
    return f"uid-{os.geteuid()}"


def _spark() -> str:
    spec = find_spec("pyspark")
    return str(Path(spec.origin).parent) if spec and spec.origin else ""


def _own_folder(name: str) -> str:
    for cache in (cache_folder, temporary_cache):  # the first may be part of an image
        folder = cache() / name
        with suppress(OSError):
            private_folder(folder)
            if os.access(folder, os.W_OK):
                return str(folder)
    raise UsageError(f"{folder} cannot be written", hint="set MIRROR_CACHE to a folder that you own")
