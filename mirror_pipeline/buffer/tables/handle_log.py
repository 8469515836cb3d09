"""The Delta log of a table as a handle of deltalake shows and continues it: in object stores, and where the table has unknown features."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, Transaction

from mirror_pipeline.buffer.place.place import sync_path
from mirror_pipeline.buffer.tables.local_log import LiveFile, Removal, live_files, other_columns

_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class HandleLog:
    """What a log says, as of the last :meth:`advance`.

    Args:
        uri: the table.
        schema: its columns.
        partition_by: its partition columns.
        steps: how often a handle is advanced before it is opened anew: it gets slower with every step.
        durable: flush each entry to the disk; local paths only.
    """

    def __init__(self, uri: str, schema: Schema, partition_by: Sequence[str], *, steps: int, durable: bool) -> None:
        self._uri = uri
        self._schema = schema
        self._partition_by = list(partition_by)
        self._most = steps
        self._durable = durable
        self._steps = 0
        self._table: DeltaTable

    def load(self, table: DeltaTable, applications: Collection[str], *, numbered: bool) -> None:
        """Begin with a fresh handle."""
        del applications
        self._table, self._numbered, self._steps = table, numbered, 0

    @property
    def version(self) -> int:
        """The handle's version."""
        return self._table.version()

    @property
    def live(self) -> dict[str, LiveFile]:
        """The live files by path."""
        return live_files(self._table, numbered=self._numbered, others=other_columns(self._partition_by))

    def number(self, application: str) -> int:
        """The number last committed, -1 when there is none. Raises DeltaError, OSError."""
        version = self._table.transaction_version(application)  # not cached in the handle: each call reads the log
        return -1 if version is None else version

    def advance(self) -> bool:
        """Go to the newest version; False when the table must be opened anew."""
        self._steps += 1
        if self._steps > self._most:
            return False
        try:
            self._table.update_incremental()
        except (DeltaError, OSError):  # versions in between may have been cleaned up
            return False
        return True

    def append(self, actions: Sequence[AddAction | Removal], transactions: Mapping[str, int]) -> None:
        """Write the next entry. Raises DeltaError, OSError, also when another writer was faster."""
        before = self._table.version()
        self._table.create_write_transaction(
            [_remove_action(each) if isinstance(each, Removal) else each for each in actions],
            "append",
            self._schema,
            self._partition_by,
            commit_properties=CommitProperties(app_transactions=[Transaction(*each) for each in transactions.items()] or None),
            post_commithook_properties=_NO_HOOKS,
        )
        self._steps += 1
        self._table.update_incremental()
        if self._durable:
            for version in range(before + 1, self._table.version() + 1):
                with contextlib.suppress(FileNotFoundError):
                    sync_path(f"{self._uri}/_delta_log/{version:020d}.json")
            sync_path(f"{self._uri}/_delta_log")


def _remove_action(each: Removal) -> RemoveAction:
    return RemoveAction(each.path, each.data_change, each.at, each.size, dict(each.partition_values))
