"""Resources that are what the definitions made them: no run may configure them anew."""

# No `from __future__ import annotations`: Dagster reads the field types at run time.
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from pydantic import PrivateAttr


class BoundResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A resource whose fields are set where the definitions are built.

    Dagster lets every run override the fields of a ConfigurableResource in its run configuration. Whoever may start a run
    could then name another mirror.yaml, with brokers of his own, or jars for Spark to load. Here such a run is refused.
    """

    _definition: dg.ResourceDefinition | None = PrivateAttr(default=None)

    def get_resource_definition(self) -> Any:
        """What Dagster runs: this object, without a schema; the same one at every call, as Dagster compares them."""
        if self._definition is None:
            ends = type(self).teardown_after_execution is not dg.ConfigurableResource.teardown_after_execution
            made = self._with_an_end if ends else self._without_an_end
            self._definition = dg.ResourceDefinition(made, config_schema={}, description=type(self).__doc__)
        return self._definition

    def _without_an_end(self, context: dg.InitResourceContext) -> Any:
        self.setup_for_execution(context)
        return self.create_resource(context)

    @contextmanager
    def _with_an_end(self, context: dg.InitResourceContext) -> Iterator[Any]:
        with self.yield_for_execution(context) as value:
            yield value
