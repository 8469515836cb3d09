"""Fixtures for every test: Kafka clusters, topic names; which slow tests run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

# Before the first of them is imported: their assertions then print both sides.
pytest.register_assert_rewrite("tests.support")

from mirror_pipeline.local.embedded.start import LocalCluster, cluster_status, start_clusters
from tests.support.kafka_source import VERSIONS, ClusterPair, GivenCluster, choose, docker_answers, start_container
from tests.support.object_store import ObjectStore
from tests.support.paths import choose_path
from tests.support.slow_tests import chosen

# A machine that also runs brokers is slow now and then: no example fails for that.
hypothesis_settings.register_profile("mirror", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("mirror")

LONG_PARTS = 2
"""``--long rotate`` runs one of so many parts of the long tests a day."""
BROKERS = 3
"""Of each cluster, as production has them; a test with a reason takes a single one by ``cluster_factory(brokers=1)``."""

# Set by the controlling process and inherited by xdist's workers: they share one pair of clusters.
_FOLDER = "MIRROR_TEST_CLUSTERS"
_DAY = "MIRROR_TEST_DAY"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mirror")
    group.addoption("--brokers-a", metavar="HOST:PORT,...", help="your own source cluster, in place of an embedded one")
    group.addoption("--brokers-b", metavar="HOST:PORT,...", help="your own target cluster")
    group.addoption("--kafka", choices=VERSIONS, help="only this Kafka version; by default all where a test asks for versions")
    sources = ["auto", "containers", "embedded"]
    group.addoption("--kafka-from", choices=sources, default="auto", help="auto: containers where Docker answers")
    group.addoption("--slow", choices=["none", "rotate", "all"], default="none", help="slow tests: none, one a day in turn, all")
    group.addoption("--long", choices=["none", "rotate", "all"], default="all", help="long tests: none, one half a day in turn, all")
    group.addoption("--path", choices=["both", "spark", "driver"], default="both", help="what carries the data; both: as folders say")


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    with contextlib.suppress(ValueError):  # a background job of a shell has SIGINT ignored, and the tests send it
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if _is_worker(config):
        return
    choose(config.getoption("--brokers-a"), config.getoption("--brokers-b"), "embedded", lambda: False)  # refuses half a pair
    os.environ[_FOLDER] = tempfile.mkdtemp(prefix="mirror-test-")
    os.environ.setdefault(_DAY, str(date.today().toordinal()))
    with contextlib.suppress(ValueError):  # not the main thread: pytest is embedded
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """A terminated session ends its brokers like one that got Ctrl-C."""
    raise KeyboardInterrupt


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_FAILED] = exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


_FAILED = pytest.StashKey[bool]()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what the session and its workers started. Logs stay when something failed."""
    folder = os.environ.get(_FOLDER)
    if _is_worker(config) or folder is None:
        return
    del os.environ[_FOLDER]
    for cluster in [cluster for directory in Path(folder).iterdir() for cluster in cluster_status(directory)]:
        cluster.kill()
    if config.stash.get(_FAILED, True) and any(Path(folder).iterdir()):
        for data in Path(folder).glob("*/*/broker-*/data"):
            shutil.rmtree(data, ignore_errors=True)
        print(f"\nbroker logs: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow and the long tests that are not asked for; pytest prints how many."""
    day = int(os.environ[_DAY])
    out: set[str] = set()
    for marker, parts in (("slow", None), ("long", LONG_PARTS)):
        names = sorted(item.nodeid for item in items if item.get_closest_marker(marker))
        out |= set(names) - set(chosen(names, config.getoption(f"--{marker}"), day, parts=parts))
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
        items[:] = [item for item in items if item.nodeid not in out]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    choose_path(item, item.config.getoption("--path"))


def pytest_report_header(config: pytest.Config) -> str:
    return f"slow tests: {config.getoption('--slow')} (--slow none|rotate|all), long tests: {config.getoption('--long')} (--long none|all)"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``kafka_version``: all versions, or the one of ``--kafka``; the user's own brokers are what they are."""
    if "kafka_version" in metafunc.fixturenames:
        only = metafunc.config.getoption("--kafka")
        versions = ["given"] if metafunc.config.getoption("--brokers-a") else [only] if only else VERSIONS
        metafunc.parametrize("kafka_version", versions, scope="session")


@pytest.fixture(scope="session")
def cluster_pairs(request: pytest.FixtureRequest) -> Iterator[Callable[[str], ClusterPair]]:
    """Gives the session's pair of clusters of a Kafka version; started on first use, shared by all workers."""
    options = request.config
    given_a, given_b = options.getoption("--brokers-a"), options.getoption("--brokers-b")
    source = choose(given_a, given_b, options.getoption("--kafka-from"), docker_answers)
    pairs: dict[str, ClusterPair] = {}
    with contextlib.ExitStack() as started:

        def pair(version: str) -> ClusterPair:
            if version not in pairs:
                if source == "given":
                    pairs[version] = GivenCluster("a", given_a, version), GivenCluster("b", given_b, version)
                else:
                    pairs[version] = (_contained(version, started) if source == "containers" else None) or _embedded(version)
            return pairs[version]

        yield pair


def _embedded(version: str) -> ClusterPair:
    a, b = start_clusters(Path(os.environ[_FOLDER]) / f"kafka-{version}", names=["a", "b"], version=version, brokers=BROKERS)
    return a, b


def _contained(version: str, started: contextlib.ExitStack) -> ClusterPair | None:
    clusters = []
    for name in ("a", "b"):
        try:
            cluster = start_container(name, version)
        except Exception as error:  # noqa: BLE001 - an engine that cannot get the image must not fail every test
            warnings.warn(f"no Kafka container ({error}): embedded clusters instead", stacklevel=2)
            return None
        started.callback(cluster.container.stop)
        clusters.append(cluster)
    return clusters[0], clusters[1]


@pytest.fixture(scope="session")
def clusters(request: pytest.FixtureRequest, cluster_pairs: Callable[[str], ClusterPair]) -> ClusterPair:
    """Source and target cluster for the whole session (4.4.0, or what ``--kafka`` says): use topics of your own."""
    return cluster_pairs(request.config.getoption("--kafka") or VERSIONS[0])


@pytest.fixture
def versioned_clusters(kafka_version: str, cluster_pairs: Callable[[str], ClusterPair]) -> ClusterPair:
    """Source and target cluster of ``kafka_version``: the test runs once for each version."""
    return cluster_pairs(kafka_version)


@pytest.fixture(scope="session")
def old_clusters(cluster_pairs: Callable[[str], ClusterPair]) -> ClusterPair:
    """Source and target cluster of the last Kafka 3."""
    return cluster_pairs("3.9.1")


@pytest.fixture
def cluster_factory(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[LocalCluster]]]:
    """Embedded clusters of the test's own, with the arguments of ``start_clusters`` but the directory; gone after the test.

    For tests that stop, kill or pause brokers, or need settings of their own. Three brokers each; a test that says why takes one.
    """
    name = re.sub(r"\W+", "-", request.node.name)[:40]
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=os.environ[_FOLDER]))

    def start(count: int = 1, **arguments: Any) -> list[LocalCluster]:
        return start_clusters(folder, count, **{"brokers": BROKERS, **arguments})

    yield start
    for cluster in cluster_status(folder):
        cluster.kill()
        for broker in cluster.brokers:
            shutil.rmtree(broker.data, ignore_errors=True)


@pytest.fixture
def object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """An S3 server of the test's own; this process and those it starts find it by their environment."""
    store = ObjectStore(tmp_path / "objects")
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    yield store
    store.kill()


@pytest.fixture
def new_topic_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Gives another unused topic name on every call."""
    stem = re.sub(r"[^\w.-]+", "-", request.node.name)[:60].strip("-.")
    return lambda: f"{stem}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic_name(new_topic_name: Callable[[], str]) -> str:
    """An unused topic name."""
    return new_topic_name()
