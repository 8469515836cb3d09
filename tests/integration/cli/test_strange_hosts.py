"""On hosts that are no developer's: the mirror copies, or says in one line what it lacks.

One table of hosts, and what each of them is to see: records copied once and compared, in this process or on Spark, or one error.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.execution.jars import ensure_jars
from mirror_pipeline.local.shapes.fill import fill
from tests.integration.processes import wait_until
from tests.support.hosts import READ_ONLY_ROOT, UID, Host, missing
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, end_offsets, produce, write_config

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "can play another host")

RECORDS = 300
DRIVER: dict[str, object] = {"inline_bytes": "64MB"}
SPARK: dict[str, object] = {"inline_bytes": 0}
CLOSED = 'exec "$@" <&- >&- 2>&-'
LIBRARIES = "gql kafka typing json yaml logging numpy pyarrow deltalake pyspark py4j random queue dataclasses"
FOREIGN = f"for name in {LIBRARIES}; do echo 'raise SystemExit(__name__)' > \"$FOLDER/$name.py\"; done"
PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
ANOTHER_SPARK = {
    "SPARK_HOME": "/opt/spark", "SPARK_CONF_DIR": "conf", "HADOOP_CONF_DIR": "conf", "SPARK_LOCAL_IP": "10.9.9.9",
    "SPARK_LOCAL_HOSTNAME": "nowhere.invalid", "SPARK_REMOTE": "sc://127.0.0.1:9", "SPARK_DIST_CLASSPATH": "/opt/hadoop/*",
    "PYSPARK_PYTHON": "/usr/bin/python2", "PYSPARK_DRIVER_PYTHON": "jupyter", "PYSPARK_SUBMIT_ARGS": "--master yarn",
    "JAVA_TOOL_OPTIONS": "-Dx=y", "_JAVA_OPTIONS": "-Dx=y", "JDK_JAVA_OPTIONS": "-Dx=y",
}  # fmt: skip
SPARK_DEFAULTS = "spark.master yarn\\nspark.eventLog.enabled true\\nspark.eventLog.dir hdfs://nowhere.invalid/x\\nspark.plugins com.No"
KERBEROS = "<configuration><property><name>hadoop.security.authentication</name><value>kerberos</value></property></configuration>"
OTHERS = {
    **ANOTHER_SPARK, **PROXIES, "AWS_PROFILE": "nobody", "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "KAFKA_HEAP_OPTS": "-Xmx1m",
    "DAGSTER_HOME": "/nowhere", "PYTHONSTARTUP": "/nowhere", "PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1", "TZ": "America/New_York",
    "COLUMNS": "7", "LINES": "x", "NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "dumb", "NUMBA_DISABLE_JIT": "1", "OMP_NUM_THREADS": "999",
}  # fmt: skip
STRANGE_NAME = "mit Leer, ü 'q' \"z\" $x;#1"
NAME_WITHOUT_COMMA = STRANGE_NAME.replace(",", "")
"""Spark separates its temporary folders by commas."""


def on_spark(name: str, host: Host, folder: str = "mirror") -> object:
    return pytest.param(host, SPARK, folder, id=f"{name}-spark", marks=pytest.mark.long)


def in_process(name: str, host: Host, folder: str = "mirror") -> object:
    return pytest.param(host, DRIVER, folder, id=name)


HOSTS = {
    "odd-user": Host(env={"USER": "Jörg\n'x'", "LOGNAME": "", "HOME": "relative", "XDG_CACHE_HOME": ""}),
    "others-variables": Host(
        mounts=f"mkdir conf; printf '{SPARK_DEFAULTS}' > conf/spark-defaults.conf; echo '{KERBEROS}' > conf/core-site.xml", env=OTHERS
    ),
    "others-modules": Host(mounts=FOREIGN),
    "plain-locale": Host(env={"LANG": "C", "LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"}),
}
COPIES = [
    *(in_process(name, HOSTS[name]) for name in ("odd-user", "others-variables", "others-modules", "plain-locale")),
    in_process("strange-path", Host(), STRANGE_NAME),
    in_process("low-limits", Host(mounts="mount -t tmpfs -o size=64k tmpfs /dev/shm", start='ulimit -n 256 -u 100; exec "$@"')),
    in_process("no-temporary-folder", Host(mounts=READ_ONLY_ROOT, env={"TMPDIR": "/nowhere"})),
    in_process("error-output-full", Host(start='exec "$@" 2>/dev/full')),
    in_process("nobody-reads-errors", Host(start='"$@" 2> >(exec 0<&-); exit $?')),
    *(on_spark(name, HOSTS[name]) for name in ("odd-user", "others-variables", "others-modules")),
    on_spark("strange-path", Host("mkdir -p -m 777 tmp cache", env={"TMPDIR": "tmp", "MIRROR_CACHE": "cache"}), NAME_WITHOUT_COMMA),
    on_spark("noexec", Host("mkdir tmp; mount -t tmpfs -o noexec,mode=1777 tmpfs tmp", env={"TMPDIR": "tmp"})),
]  # fmt: skip


@pytest.fixture
def place() -> Iterator[Callable[[str], Path]]:
    """Gives a folder of a name, which every user can reach and the host's user owns; pytest's own are closed."""
    top = Path(tempfile.mkdtemp(prefix="mirror-host-"))
    top.chmod(0o755)

    def make(name: str) -> Path:
        (top / name).mkdir()
        return top / name

    yield make
    shutil.rmtree(top, ignore_errors=True)


def configured(folder: Path, clusters: ClusterPair, include: list[str], engine: dict[str, object], **mirror: object) -> Path:
    source, target = clusters
    write_config(folder, source.bootstrap_servers, target.bootstrap_servers, include, engine=engine, **mirror)
    for path in (folder, folder / "mirror.yaml"):
        os.chown(path, UID, UID)
    return folder


def absolute(host: Host, folder: Path) -> Host:
    """The host with its relative folders below the test's own."""
    env = {name: str(folder / value) if value in ("tmp", "cache", "conf") else value for name, value in host.env.items()}
    return Host(f'cd "$FOLDER"; {host.mounts or "true"}', host.start, env)


def copied(host: Host, folder: Path, records: int) -> None:
    """Run, look, and compare every record of both sides."""
    host = absolute(host, folder)
    ran = host.mirror(folder, "run", "--once", "--json")
    assert ran.returncode == 0, ran
    assert not ran.stdout or [topic["state"] for topic in json.loads(ran.stdout)["mirrors"][0]["topics"]].count("ok"), ran
    looked = Host(env={"TMPDIR": str(folder)}).mirror(folder, "verify", "--json")
    assert looked.returncode == 0, looked
    body = json.loads(looked.stdout)
    assert (body["ok"], body["records"]) == (True, records), body


@pytest.mark.long
@pytest.mark.parametrize(("host", "engine", "name"), COPIES)
def test_the_mirror_copies_on(
    host: Host, engine: dict[str, object], name: str, clusters: ClusterPair, place: Callable[[str], Path], topic_name: str
) -> None:
    create_topic(clusters[0].bootstrap_servers, topic_name, 2)
    produce(clusters[0].bootstrap_servers, topic_name, RECORDS, partitions=2)
    copied(host, configured(place(name), clusters, [topic_name], engine), RECORDS)


@pytest.fixture(scope="module")
def demo_topics(clusters: ClusterPair) -> tuple[str, list[str]]:
    """The demo's topics under a prefix of this module."""
    prefix = f"host{time.time_ns()}-"
    return prefix, [topic.name for topic in fill(clusters[0].bootstrap_servers, scale=500, prefix=prefix)]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "home"), [(DRIVER, None), (SPARK, "/")], ids=["process", "spark"])
def test_in_a_container_the_demos_topics_are_copied_and_verified(
    engine: dict[str, object], home: str | None, clusters: ClusterPair, demo_topics: tuple[str, list[str]], place: Callable[[str], Path]
) -> None:
    """The user has a number, no name and no home, the root is read-only, all streams are closed."""
    prefix, topics = demo_topics
    target = {"match": "(.*)", "replace": f"to{time.time_ns()}.\\1"}
    folder = configured(place("mirror"), clusters, [f"{prefix}.*"], engine, naming=target)
    container = absolute(
        Host(f"mkdir -p -m 1777 tmp; {READ_ONLY_ROOT}", CLOSED, {"TMPDIR": "tmp", **({} if home is None else {"HOME": home})}), folder
    )
    assert container.mirror(folder, "plan").returncode == 0
    assert container.mirror(folder, "run", "--once").returncode == 0
    assert container.mirror(folder, "verify").returncode == 0
    looked = Host(container.mounts, env=container.env).mirror(folder, "verify", "--json")
    verdicts = {topic["topic"]: topic["verdict"] for topic in json.loads(looked.stdout)["topics"]}
    assert verdicts == dict.fromkeys(topics, "identical")
    lag = Host(container.mounts, env=container.env).mirror(folder, "lag", "--json")
    assert (lag.returncode, json.loads(lag.stdout)["mirrors"][0]["lag_records"]) == (0, 0), lag


ONE_LINE = {
    "tilde-without-home": (Host(), {"buffer": {"uri": "~/buffer"}}, 2, "~ is the home of nobody here", "set HOME"),
    "no-parent-folder": (Host(), {"buffer": {"uri": "/nowhere/at/all"}}, 1, "the folder /nowhere/at does not exist", "create it"),
    "read-only-buffer": (Host(mounts="mount -o remount,bind,ro / 2>/dev/null"), {}, 1, "not writable by this user", "buffer.uri"),
    "few-threads": (Host(start='ulimit -u 20; exec "$@"'), {}, 2, "threads can be started", "ulimit -u"),
    "few-files": (Host(start='ulimit -n 24; exec "$@"'), {}, 2, "only 24 files can be opened", "ulimit -n"),
    "few-files-for-spark": (Host(start='ulimit -n 256; exec "$@"'), {"engine": SPARK}, 2, "only 256 files can be opened, 512", "ulimit -n"),
    "few-threads-for-spark": (Host(start='ulimit -u 120; exec "$@"'), {"engine": SPARK}, 2, "threads can be started", "ulimit -u"),
    "optimised-python": (Host(env={"PYTHONOPTIMIZE": "1"}), {}, 2, "Python runs without assertions", "unset PYTHONOPTIMIZE"),
    "no-place-for-answers": (Host(start='exec "$@" >/dev/full'), {}, 1, "standard output cannot be written: No space left", "free space"),
}


@pytest.mark.parametrize(("host", "settings", "code", "message", "hint"), ONE_LINE.values(), ids=ONE_LINE)
def test_what_the_host_lacks_is_one_line(
    host: Host, settings: dict[str, object], code: int, message: str, hint: str,
    clusters: ClusterPair, place: Callable[[str], Path], topic_name: str,
) -> None:  # fmt: skip
    create_topic(clusters[0].bootstrap_servers, topic_name)
    produce(clusters[0].bootstrap_servers, topic_name, 10)
    engine = settings.get("engine", DRIVER)
    assert isinstance(engine, dict)
    folder = configured(place("mirror"), clusters, [topic_name], engine, **{k: v for k, v in settings.items() if k != "engine"})
    ran = host.mirror(folder, "run", "--once")
    lines = [line for line in ran.stderr.splitlines() if line != "reading the clusters"]
    assert (ran.returncode, len(lines)) == (code, 2), ran
    assert lines[0].startswith("error: ") and message in lines[0]
    assert lines[1].startswith("hint: ") and hint in lines[1]


def test_a_locale_that_cannot_name_the_folder_is_one_line(clusters: ClusterPair, place: Callable[[str], Path]) -> None:
    folder = configured(place("ü"), clusters, ["none"], DRIVER)
    host = Host(env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    ran = host.mirror(folder, "status")
    assert (ran.returncode, "Traceback" in ran.stderr) in ((0, False), (2, False)), ran


@pytest.mark.long
def test_sql_answers_a_user_without_a_name(clusters: ClusterPair, place: Callable[[str], Path], topic_name: str) -> None:
    """The jars are part of the image: only root can write to their folder."""
    create_topic(clusters[0].bootstrap_servers, topic_name)
    produce(clusters[0].bootstrap_servers, topic_name, 10)
    folder = configured(place("mirror"), clusters, [topic_name], DRIVER)
    image = place("image")
    shutil.copytree(ensure_jars("delta"), image / "jars" / "delta")
    (image / "jars").chmod(0o755)
    host = Host(FOREIGN, env={"MIRROR_CACHE": str(image), "HOME": "/", **ANOTHER_SPARK})
    assert host.mirror(folder, "run", "--once").returncode == 0
    host = Host(READ_ONLY_ROOT, env={"MIRROR_CACHE": str(image), "HOME": "/", "TMPDIR": str(folder), **ANOTHER_SPARK})
    asked = host.mirror(folder, "sql", "SELECT sum(records) AS copied FROM sends", "--json")
    assert (asked.returncode, json.loads(asked.stdout)["rows"]) == (0, [{"copied": 10}]), asked


@pytest.mark.long
@pytest.mark.timeout(400)
def test_up_copies_for_a_user_without_a_name(clusters: ClusterPair, place: Callable[[str], Path], topic_name: str) -> None:
    """The current folder holds files named like libraries, and requests would go through a proxy that is not there."""
    create_topic(clusters[0].bootstrap_servers, topic_name)
    produce(clusters[0].bootstrap_servers, topic_name, 10)
    folder = configured(place("mirror"), clusters, [topic_name], DRIVER)
    process = Host(FOREIGN, 'exec "$@" <&-', OTHERS).popen(folder, "up", "--port", "0", "--no-token")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Dagster UI: http://127.0.0.1:"), process.communicate(timeout=60)
        mirror = Mirror(load_config(folder / "mirror.yaml"), "m")
        wait_until(lambda: _ends(mirror, topic_name) == {0: 10}, 200, "the records on the target")
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    finally:
        process.kill()


def _ends(mirror: Mirror, topic: str) -> dict[int, int]:
    try:
        return end_offsets(mirror, f"east.{topic}", target=True)
    except (KeyError, MirrorError):
        return {}
