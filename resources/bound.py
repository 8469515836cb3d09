"""Resources that are configured where the definitions are built; no run may override them."""

# No `from __future__ import annotations`: Dagster reads the field types at run time.
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from pydantic import PrivateAttr


class BoundResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A resource whose fields are set where the definitions are built.

    Dagster lets every run override the fields of a ConfigurableResource in its run configuration. Anyone who may start a run
    could then name another mirror.yaml with other brokers, or jars for Spark to load. This class refuses such a run.
    """

    _definition: dg.ResourceDefinition | None = PrivateAttr(default=None)

    def get_resource_definition(self) -> Any:
        """A definition of this object without a schema; the same one at every call, because Dagster compares them."""
        if self._definition is None:
            has_teardown = type(self).teardown_after_execution is not dg.ConfigurableResource.teardown_after_execution
            function = self._with_teardown if has_teardown else self._without_teardown
            self._definition = dg.ResourceDefinition(function, config_schema={}, description=type(self).__doc__)
        return self._definition

    def _without_teardown(self, context: dg.InitResourceContext) -> Any:
        self.setup_for_execution(context)
        return self.create_resource(context)

    @contextmanager
    def _with_teardown(self, context: dg.InitResourceContext) -> Iterator[Any]:
        with self.yield_for_execution(context) as value:
            yield value
