"""Runs one part of the tests against one copy of the package, in a process of its own. Imports nothing of the package."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

PRELOAD = ["pytest", "hypothesis.stateful", "pyarrow.parquet", "deltalake", "confluent_kafka.admin", "kafka.protocol.metadata", "pydantic"]
"""What every part needs; forked with it, a build is judged a second sooner."""
OURS = ("mirror_pipeline", "tests")


def judge(copy: str, root: str, arguments: Sequence[str], environment: Mapping[str, str], output: str) -> None:
    """The target of a forked process; ends with pytest's exit code."""
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.environ.update(environment)
    os.chdir(root)
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS and name != __name__]:
        del sys.modules[name]
    sys.path[:] = [copy, root, *(path for path in sys.path if path not in ("", copy, root))]
    import pytest

    code = pytest.main(list(arguments))
    import mirror_pipeline

    if not mirror_pipeline.__file__.startswith(copy):
        print(f"ERROR the package came from {mirror_pipeline.__file__}")
        code = 99
    print(f"CPU {sum(os.times()[:2]):.1f} seconds")
    sys.stdout.flush()
    os._exit(int(code))
