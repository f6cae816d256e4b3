"""Opening a run: its record, its lock and its rows. `rollouts.py` has what runs the rollouts.

A run is named; the same name with the same inputs goes on where it stopped (see `identity.py`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osmosis_ai.config import Config
from osmosis_ai.controller.identity import changes_of, refuse_changes, refuse_kind, run_identity
from osmosis_ai.datasets import Dataset, Selection, open_dataset
from osmosis_ai.errors import OsmosisError, StoreError
from osmosis_ai.providers.prices import Prices
from osmosis_ai.store.base import Amendment, RolloutFilter, RunKind, RunRecord, RunState, Store
from osmosis_ai.store.lock import RunLock
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.store.workspace import Workspace, newest_number, numbered
from osmosis_ai.types import Rollout


@dataclass(slots=True)
class OpenRun:
    """A run that this process holds the lock of."""

    record: RunRecord
    folder: Path
    store: Store
    config: Config
    workspace: Workspace
    resumed: bool
    stored: bool  # a run is stored when all its inputs have been found to hold
    before: RunRecord | None = None  # what it was, when it goes on with other inputs

    @property
    def run_id(self) -> str:
        return self.record.run_id

    async def begin(self) -> None:
        """Store the run, or that it goes on. A run whose inputs do not hold leaves nothing behind."""
        if not self.stored:
            await self.store.create_run(self.record)
            self.stored = True
        elif self.resumed:
            if self.before is not None:
                await self.store.amend_run(self.record)
            await self.store.resume_run(self.run_id)

    def stays(self) -> bool:
        """Nothing is to be run: the run stays what it was. True when its inputs are others by now."""
        if self.before is None:
            return False
        self.record, self.before = self.before, None
        return True

    async def finish(self, error: str = "", *, interrupted: bool = False) -> None:
        state: RunState = "interrupted" if interrupted else "failed" if error else "done"
        if self.stored:
            await self.store.finish_run(self.run_id, state, error)

    async def fail(self, error: Exception) -> None:
        """Store that the run has failed, and why."""
        ours = isinstance(error, OsmosisError)
        with suppress(StoreError):  # the full disk that ended the run may refuse this too
            await self.finish(str(error) if ours else f"{type(error).__name__}: {error}")


@asynccontextmanager
async def open_run(
    config: Config, kind: RunKind, workspace: Workspace, *, fresh: bool = False, accept_changes: bool = False
) -> AsyncIterator[OpenRun]:
    """Create the run that `config` names, or take it up again; holds its lock until the end.

    Raises UsageError when the run exists with another identity and `accept_changes` does not say that it goes
    on with this one, RunLockedError when another process has it.
    """
    identity = run_identity(config, kind, workspace)
    async with AsyncExitStack() as stack:
        store = SqliteStore(workspace.database)
        stack.push_async_callback(store.close)
        run_id = await run_id_of(store, config.run_name, fresh=fresh)
        folder = workspace.run_folder(run_id)
        stack.enter_context(RunLock(folder))
        known = await store.get_run(run_id)
        plain = {**config.model_dump(mode="json"), "source": str(config.source.absolute())}
        if known is None:
            record = RunRecord(run_id, kind, "running", time.time(), identity, plain)
            yield OpenRun(record, folder, store, config, workspace, resumed=False, stored=False)
            return
        refuse_kind(known, kind)
        changes = changes_of(known, identity)
        if not accept_changes:
            refuse_changes(known, changes)
        record = known if not changes else _amended(known, identity, plain, changes)
        yield OpenRun(
            record,
            folder,
            store,
            config,
            workspace,
            resumed=True,
            stored=True,
            before=known if changes else None,
        )


def _amended(
    known: RunRecord, identity: dict[str, Any], config: dict[str, Any], changes: dict[str, list[Any]]
) -> RunRecord:
    """The run as it goes on: what it was made with until now is in its lineage."""
    lineage = [*known.lineage, Amendment(time.time(), changes)]
    return replace(known, identity=identity, config=config, lineage=lineage)


async def run_id_of(store: Store, name: str, *, fresh: bool) -> str:
    """The newest run of that name, or with `fresh` the next one: name, name-2, name-3, ..."""
    names = await store.run_names()
    number = newest_number(name, names) or 1
    while fresh and numbered(name, number) in names:
        number += 1
    return numbered(name, number)


async def leftovers(run: OpenRun, *, step: int | None = None) -> list[Rollout]:
    """What an earlier life of the run left behind (of one step)."""
    if not run.resumed:
        return []
    return await run.store.rollouts(RolloutFilter(run.run_id, step=step))


def read_rows(config: Config) -> Dataset:
    """The rows that the config selects, checked. Raises DatasetError."""
    table = config.dataset
    selection = Selection(table.limit, table.offset, table.rows, table.sample, table.seed)
    return open_dataset(config.resolve(table.path), selection)


def prices_of(config: Config) -> Prices | None:
    """What the model's tokens cost, by the config; None: it does not say."""
    llm = config.llm
    if llm is None or llm.input_price is None or llm.output_price is None:
        return None
    return Prices(llm.input_price, llm.output_price, llm.cached_input_price)
