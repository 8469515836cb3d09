"""The far end of the link, run inside its namespace: the source cluster, reachable from the near end; and filling it.

    python -m benchmarks.wan.far start FOLDER [tls | plain [NAME ADDRESS]]
    python -m benchmarks.wan.far fill WORKLOAD SCALE
    python -m benchmarks.wan.far stop FOLDER [NAME]
    python -m benchmarks.wan.far resume FOLDER NAME
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.machine import BROKER_CONFIG, BROKER_HEAP, SERVER_JIT
from benchmarks.wan.link import FAR_ADDRESS
from benchmarks.workloads import MB, Workload, chosen, fill
from mirror_pipeline.local.embedded.cluster import LocalCluster, write_state
from mirror_pipeline.local.embedded.settings import BROKER, CONTROLLER, ClusterSpec
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters

TLS = "TLS"
PORTS = {BROKER: 19092, CONTROLLER: 19093, TLS: 19094}  # a namespace of its own: all ports are free
PLAIN_ADDRESS, TLS_ADDRESS = f"{FAR_ADDRESS}:{PORTS[BROKER]}", f"{FAR_ADDRESS}:{PORTS[TLS]}"
WORKLOADS = (Workload("wan-1kb", "bulk", total_bytes=4_000 * MB), Workload("wan-1kb-lz4", "bulk", codec="lz4", total_bytes=8_000 * MB))


def start(folder: Path, *, tls: bool, name: str = "source", address: str = FAR_ADDRESS) -> None:
    """Start the source, or another cluster, with Kafka's own settings for sockets; it listens on the link."""
    names = [BROKER, TLS] if tls else [BROKER]
    config = {
        **BROKER_CONFIG,
        "listeners": ",".join([*(f"{each}://0.0.0.0:{PORTS[each]}" for each in names), f"{CONTROLLER}://127.0.0.1:{PORTS[CONTROLLER]}"]),
        "advertised.listeners": ",".join(f"{each}://{address}:{PORTS[each]}" for each in names),
        **(_certificate(folder) if tls else {}),
    }
    listeners = {TLS: "SSL"} if tls else {}
    spec = ClusterSpec(config=config, listeners=listeners, heap=BROKER_HEAP, jvm_options=(SERVER_JIT,))
    cluster = LocalCluster.create(folder / name, spec)
    write_state(cluster.folder, spec, cluster.cluster_id, [{each: PORTS[each] for each in spec.listener_names}])
    start_clusters(folder, names=[name])


def _certificate(folder: Path) -> dict[str, str]:
    """An authority (``ca.pem``) and a certificate of the broker's address, both for a day."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "names").write_text(f"subjectAltName=IP:{FAR_ADDRESS},IP:127.0.0.1\n")
    key = ["-newkey", "rsa:2048", "-nodes"]
    _openssl(folder, "req", "-x509", *key, "-days", "1", "-subj", "/CN=bench-ca", "-keyout", "ca-key.pem", "-out", "ca.pem")
    _openssl(folder, "req", "-new", *key, "-subj", "/CN=bench-source", "-keyout", "key.pem", "-out", "request.pem")
    signing = ["-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-extfile", "names", "-days", "1"]
    _openssl(folder, "x509", "-req", "-in", "request.pem", "-out", "certificate.pem", *signing)
    (folder / "keystore.pem").write_text((folder / "key.pem").read_text() + (folder / "certificate.pem").read_text())
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "keystore.pem")}


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


def main(words: list[str]) -> None:
    """``start``, ``fill``, ``stop`` or ``resume``."""
    if words[0] == "start":
        start(Path(words[1]), tls="tls" in words[2:3], **dict(zip(("name", "address"), words[3:], strict=False)))
    elif words[0] == "fill":
        (workload,) = chosen([words[1]], WORKLOADS)
        fill(PLAIN_ADDRESS, workload, float(words[2]))
    elif words[0] == "resume":
        start_clusters(Path(words[1]), names=[words[2]])
    else:
        stop_clusters(Path(words[1]), *(words[2:] or ["source"]))


if __name__ == "__main__":
    main(sys.argv[1:])
