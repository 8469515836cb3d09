"""pyarrow imports pandas to look for its objects; a lane's process has none, and does without the 35 MB."""

from __future__ import annotations

import subprocess
import sys

import pytest

WORK = """
import sys
import pyarrow as pa, pyarrow.compute as pc
{first}
table = pa.table({{"a": pa.array([1, 2, 3]), "k": pa.array(["x", "y", "x"])}})
assert table.group_by("k").aggregate([("a", "max")]).num_rows == 2
assert table.filter(pc.field("a") > 1).join(table, keys="k", right_suffix="_r").sort_by("a").num_rows == 3
assert pc.add(table["a"], 5).to_pylist() == [6, 7, 8]
print("pandas" in sys.modules)
print(table.to_pandas().shape)
import pandas
print(pa.array(pandas.Series([1.0, float("nan")]), from_pandas=True).null_count)
"""
KEEP = "from mirror_pipeline.buffer.tables.columns import keep_pandas_out; keep_pandas_out(); keep_pandas_out()"


@pytest.mark.parametrize(("first", "imported"), [("", True), (KEEP, False)], ids=["pyarrow alone", "kept out"])
def test_pandas_is_imported_only_by_who_asks_for_it(first: str, imported: bool) -> None:
    done = subprocess.run([sys.executable, "-c", WORK.format(first=first)], capture_output=True, text=True, check=False)
    assert done.stdout == f"{imported}\n(3, 2)\n1\n", done.stderr
