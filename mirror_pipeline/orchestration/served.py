"""``defs`` as ``mirror up`` serves them: the definitions of the mirrors, and nothing in them that a run could configure but its own pace.

They stand apart from :mod:`mirror_pipeline.orchestration.definitions`, which people merge into projects with an io manager of their own.
"""

from __future__ import annotations

import dagster as dg

from mirror_pipeline.orchestration.definitions import defs as mirrors


@dg.io_manager(config_schema={}, description="No step hands a value to another: data goes through the buffer.")
def nothing_stored() -> dg.IOManager:
    """In the place of Dagster's own, which pickles below a folder that each run may name."""
    return dg.InMemoryIOManager()  # type: ignore[no-untyped-call]


def closed(definitions: dg.Definitions) -> dg.Definitions:
    """The same definitions with every resource out of reach of run configuration."""
    return dg.Definitions.merge(definitions, dg.Definitions(resources={"io_manager": nothing_stored}))


defs = closed(mirrors)
