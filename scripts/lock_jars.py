"""Write mirror_pipeline/execution/jars.json: what the roots below need, resolved by Ivy, with the SHA-256 of every jar.

Run it after changing a version: `.venv/bin/python scripts/lock_jars.py`, read the difference, commit it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
import tempfile
from pathlib import Path

from mirror_pipeline.execution import ivy

PINS = Path(__file__).parent.parent / "mirror_pipeline" / "execution" / "jars.json"

_LOG4J2 = ["org.apache.logging.log4j:log4j-slf4j-impl:2.25.4", "org.apache.logging.log4j:log4j-1.2-api:2.25.4"]
ROOTS = {
    "kafka-4.4.0": ("Kafka 4.4.0", ["org.apache.kafka:kafka_2.13:4.4.0", *_LOG4J2]),
    "kafka-4.3.0": ("Kafka 4.3.0", ["org.apache.kafka:kafka_2.13:4.3.0", *_LOG4J2]),
    "kafka-3.9.1": ("Kafka 3.9.1", ["org.apache.kafka:kafka_2.13:3.9.1", "org.slf4j:slf4j-reload4j:1.7.36"]),
    "mm2-4.3.0": (
        "MirrorMaker 4.3.0",
        ["org.apache.kafka:kafka_2.13:4.3.0", "org.apache.kafka:connect-mirror:4.3.0", "org.apache.kafka:kafka-tools:4.3.0", *_LOG4J2],
    ),
    # jackson-datatype-jdk8 in the version of the jackson that Spark brings
    "delta": ("Delta 4.4.0", ["io.delta:delta-spark_4.2_2.13:4.4.0", "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.21.2"]),
}
# Classes that Spark's own jars hold under another file name.
_IN_SPARK = {"shims", "commons-logging", "javax.annotation-api"}


def in_spark() -> set[str]:
    """Artifacts that Spark brings itself: a second version beside them would be a gamble on the class path's order."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("pyspark is not installed")
    names = [path.stem for path in (Path(spec.origin).parent / "jars").glob("*.jar")]
    return {re.sub(r"-\d[\d.]*(-\d+)?(\.\w+)?$", "", name) for name in names} | _IN_SPARK


def resolve(roots: list[str], skip: set[str]) -> dict[str, str]:
    """Coordinates of everything ``roots`` need, without the artifacts in ``skip``, with checksums."""
    with tempfile.TemporaryDirectory() as folder:
        jars = Path(folder) / "jars"
        pattern = "[organisation]/[artifact]/[revision]/jar(-[classifier]).[ext]"
        ivy.fetch(roots, jars, Path(folder) / "work", pattern=pattern, transitive=True, arrived=lambda: None)
        found = {":".join(path.relative_to(jars).parts[:3]): hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.rglob("*.jar")}
    return {coordinate: digest for coordinate, digest in sorted(found.items()) if coordinate.split(":")[1] not in skip}


def main() -> None:
    """Resolve every kind and write the file."""
    pins = {}
    for kind, (title, roots) in ROOTS.items():
        jars = resolve(roots, in_spark() if kind == "delta" else set())
        print(f"{kind}: {len(jars)} jars", file=sys.stderr)
        pins[kind] = {"title": title, "roots": roots, "jars": jars}
    PINS.write_text(json.dumps(pins, indent=1) + "\n")


if __name__ == "__main__":
    main()
