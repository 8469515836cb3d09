"""The clusters of a mirror: which two they are, before anything is read or written."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_pipeline import load_config
from mirror_pipeline.errors import ClusterUnreachable, UsageError
from mirror_pipeline.flow import Flow
from tests.support.scripted_broker import negotiate, read_request
from tests.support.scripted_metadata import serve_metadata

pytestmark = pytest.mark.timeout(60)


@contextlib.contextmanager
def brokers(*cluster_ids: str) -> Iterator[list[str]]:
    """Servers that say whose they are; their addresses."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in cluster_ids]

    def talk(connected: socket.socket, cluster_id: str) -> None:
        with connected, contextlib.suppress(EOFError, OSError):
            negotiate(connected)
            while True:
                serve_metadata(connected, read_request(connected), [], cluster_id=cluster_id)

    def serve(listener: socket.socket, cluster_id: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0], cluster_id), daemon=True).start()

    for listener, cluster_id in zip(listeners, cluster_ids, strict=True):
        threading.Thread(target=serve, args=(listener, cluster_id), daemon=True).start()
    try:
        yield [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    finally:
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


def flow_of(folder: Path, east: str, west: str, **more: str) -> Flow:
    clusters = {"east": east, "west": west, **more}
    mirrors = [{"name": "m", "source": "east", "target": "west", "topics": {"include": [".*"]}, "naming": "identity"}]
    mirrors += [{"name": "back", "source": "west", "target": alias, "topics": {"include": [".*"]}, "naming": "identity"} for alias in more]
    body = {"clusters": {alias: {"bootstrap_servers": servers} for alias, servers in clusters.items()}, "mirrors": mirrors}
    path = folder / "mirror.yaml"
    path.write_text(json.dumps(body | {"buffer": {"uri": "./buffer"}}))
    return Flow(load_config(path), "m")


def test_the_ids_are_learned_before_anything_else(tmp_path: Path) -> None:
    with brokers("a", "b") as (east, west):
        flow = flow_of(tmp_path, east, west)
        assert (flow.source.cluster_id, flow.target.cluster_id) == ("", "")
        flow.meet()
    assert (flow.source.cluster_id, flow.target.cluster_id) == ("a", "b")
    flow.meet()  # nobody answers now, and nobody is asked


def test_one_cluster_under_two_names_is_refused(tmp_path: Path) -> None:
    with brokers("a", "a") as (east, west), pytest.raises(UsageError, match="clusters east and west are one cluster \\(id a\\)"):
        flow_of(tmp_path, east, west).meet()


def test_addresses_that_lead_to_different_clusters_are_refused_while_nothing_tells_which_is_meant(tmp_path: Path) -> None:
    with brokers("a", "x", "b") as (east, other, west):
        flow = flow_of(tmp_path, f"{east},{other}", west)
        with pytest.raises(ClusterUnreachable, match=f"east: its addresses lead to different clusters: .*{other} to x") as caught:
            flow.meet()
        assert caught.value.cluster == "east"
        flow.source = replace(flow.source, cluster_id="a")
        flow.meet()


def test_a_cluster_that_is_silent_is_told_apart_later(tmp_path: Path) -> None:
    with brokers("a") as (east,):
        flow = flow_of(tmp_path, east, "127.0.0.1:1")
        flow.meet()
    assert (flow.source.cluster_id, flow.target.cluster_id) == ("a", "")


def test_two_names_of_one_cluster_count_as_one_in_a_loop(tmp_path: Path) -> None:
    from mirror_pipeline.topics.lanes import select_topics

    with brokers("a", "b", "a") as (east, west, again):
        flow = flow_of(tmp_path, east, west, again=again)
        assert list(select_topics(flow.config, flow.settings, ["t"]).topics) == ["t"]
        flow.meet()
        selected = select_topics(flow.config, flow.settings, ["t"])
        assert not selected.topics
        assert "m -> back -> m" in selected.refused["t"].message
