"""``defs`` as ``mirror up`` serves them: a run can configure only its own pace.

Separate from :mod:`mirror_pipeline.orchestration.definitions`, which users merge into projects that have their own io manager.
"""

from __future__ import annotations

import dagster as dg

from mirror_pipeline.buffer.tables.columns import keep_pandas_out
from mirror_pipeline.orchestration.definitions import defs as mirrors


@dg.io_manager(config_schema={}, description="No step passes a value to another: data goes through the buffer.")
def nothing_stored() -> dg.IOManager:
    """Replaces Dagster's default, which pickles into a folder that each run may choose."""
    return dg.InMemoryIOManager()  # type: ignore[no-untyped-call]


def closed(definitions: dg.Definitions) -> dg.Definitions:
    """The same definitions with every resource out of reach of run configuration, and one process per run, whoever starts it."""
    return dg.Definitions.merge(definitions, dg.Definitions(resources={"io_manager": nothing_stored}, executor=dg.in_process_executor))


keep_pandas_out()
defs = closed(mirrors)
