"""What is read from a broker's log and process; what is written into its settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pipeline.local.embedded.broker import LocalBroker, cause_in, command_line, thread_states
from mirror_pipeline.local.embedded.settings import ClusterSpec, kafka_uuid, properties, server_properties

INVALID = "org.apache.kafka.common.config.ConfigException: Invalid value x for configuration num.io.threads: Not a number of type INT"
FATAL = """[2026-11-21 14:46:50,346] INFO Registered `kafka:type=kafka.Log4jController` MBean (kafka.utils.Log4jControllerRegistration$)
[2026-11-21 14:46:51,300] ERROR Exiting Kafka due to fatal exception (kafka.Kafka$)
org.apache.kafka.common.config.ConfigException: Invalid value x for configuration num.io.threads: Not a number of type INT
\tat org.apache.kafka.common.config.ConfigDef.parseType(ConfigDef.java:800)
\tat kafka.Kafka.main(Kafka.scala)
"""
NESTED = """[2026-11-21 14:46:51,300] ERROR [KafkaRaftServer nodeId=1] Fatal (kafka.server.KafkaRaftServer)
java.lang.RuntimeException: Unable to start acceptor
\tat kafka.network.SocketServer.x(SocketServer.scala:1)
Caused by: java.net.BindException: Address already in use
\tat java.base/sun.nio.ch.Net.bind0(Native Method)
\t... 3 more
[2026-11-21 14:46:52,000] ERROR something that followed (kafka.Kafka$)
java.lang.IllegalStateException: a consequence
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (FATAL, INVALID),
        (NESTED, "java.net.BindException: Address already in use"),
        ("[2026-11-21 14:46:51,300] FATAL no exception here (kafka.Kafka$)\n", "no exception here"),
        ("Error: Could not find or load main class kafka.Kafka\n\n", "Error: Could not find or load main class kafka.Kafka"),
        ('Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n\tat x\n', "java.lang.OutOfMemoryError: Java heap space"),
        ("", ""),
    ],
)
def test_cause_of_a_failed_start_is_one_line(log: str, cause: str) -> None:
    assert cause_in(log) == cause


def test_pid_of_a_stranger_does_not_count(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, 1, "4.3.0", "512m")
    assert broker.pid is None
    (tmp_path / "pid").write_text(str(os.getpid()))
    assert "python" in command_line(os.getpid())
    assert broker.pid is None
    assert not broker.alive


def test_pid_is_recognised_by_another_process_through_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", f"-Dmirror.broker={tmp_path}", "more"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (tmp_path / "pid").write_text(str(process.pid))
        broker = LocalBroker(tmp_path, 1, "4.3.0", "512m")
        assert broker.pid == process.pid
        process.communicate(b"\n")
    assert broker.pid is None


def test_folder_that_begins_like_another_is_not_taken_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", f"-Dmirror.broker={tmp_path}/broker-10"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for name, pid in {"broker-1": None, "broker-10": process.pid}.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "pid").write_text(str(process.pid))
            assert LocalBroker(tmp_path / name, 1, "4.3.0", "512m").pid == pid
        process.communicate(b"\n")


MANY_THREADS = """
import threading, time
def work():
    while True:
        time.sleep(0.001)
for _ in range(30):
    threading.Thread(target=work, daemon=True).start()
print(flush=True)
input()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc: whether a process has stopped cannot be seen")
def test_a_stopped_process_runs_no_more_when_the_signal_returns(tmp_path: Path) -> None:
    """kill(2) returns before the threads stop: on a busy machine a paused broker answered one more request."""
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            hog = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(hog.kill)
        command = [sys.executable, "-c", MANY_THREADS, f"-Dmirror.broker={tmp_path}", "more"]
        process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        stack.callback(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        (tmp_path / "pid").write_text(str(process.pid))
        broker = LocalBroker(tmp_path, 1, "4.3.0", "512m")
        seen = []
        for _ in range(20):
            time.sleep(0.05)
            broker.signal(signal.SIGSTOP)
            seen.append(thread_states(process.pid))
            broker.signal(signal.SIGCONT)
    assert seen == [{"T"}] * 20


def test_settings_of_three_brokers_name_each_other() -> None:
    spec = ClusterSpec(brokers=3, config={"num.partitions": "7"}, listeners={"SASL": "SASL_PLAINTEXT"})
    ports = [{"PLAINTEXT": 100 + i, "CONTROLLER": 200 + i, "SASL": 300 + i} for i in (1, 2, 3)]
    lines = server_properties(spec, 2, ports, Path("/data")).splitlines()
    assert "node.id=2" in lines
    assert "controller.quorum.voters=1@127.0.0.1:201,2@127.0.0.1:202,3@127.0.0.1:203" in lines
    assert "listeners=PLAINTEXT://127.0.0.1:102,CONTROLLER://127.0.0.1:202,SASL://127.0.0.1:302" in lines
    assert "advertised.listeners=PLAINTEXT://127.0.0.1:102,SASL://127.0.0.1:302" in lines
    assert "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT" in lines
    assert "offsets.topic.replication.factor=3" in lines
    assert "num.partitions=7" in lines


def test_spec_survives_its_file() -> None:
    spec = ClusterSpec("3.9.1", 3, {"a": "b"}, {"TLS": "SSL"}, ("--add-scram", "x"), "1g", ("-Xss1m",))
    assert ClusterSpec.from_json(spec.to_json()) == spec


def test_cluster_ids_are_what_kafka_takes() -> None:
    ids = {kafka_uuid() for _ in range(200)}
    assert len(ids) == 200
    assert all(len(i) == 22 and not i.startswith("-") for i in ids)


@settings(max_examples=40)
@given(st.dictionaries(st.from_regex(r"[a-z][a-z.]{0,8}", fullmatch=True), st.text(st.characters(exclude_categories=["Cs", "Cc"]))))
def test_properties_say_what_was_meant(settings: dict[str, str]) -> None:
    assert parsed(properties(settings)) == settings


def parsed(text: str) -> dict[str, str]:
    """Java's reading of a properties file, as far as :func:`properties` uses the format."""
    found = {}
    for line in text.split("\n")[:-1]:
        key, _, raw = line.partition("=")
        assert raw == raw.lstrip(" ")
        units, i = bytearray(), 0
        while i < len(raw):
            if raw[i] != "\\":
                units += raw[i].encode("utf-16-be")
                i += 1
            elif raw[i + 1] == "u":
                units += bytes.fromhex(raw[i + 2 : i + 6])
                i += 6
            else:
                units += {"n": "\n", "r": "\r", "t": "\t"}.get(raw[i + 1], raw[i + 1]).encode("utf-16-be")
                i += 2
        found[key] = units.decode("utf-16-be")
    return found
