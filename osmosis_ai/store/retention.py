"""Taking runs out of the database, and giving the space back.

Messages and tools are stored once for all runs, so what a deleted run alone has used is looked for and
deleted with it. That is only safe while nobody else writes, and nobody remembers the ids of messages: the
database is opened exclusively, or not at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import apsw

from osmosis_ai.errors import StoreError
from osmosis_ai.store.base import RunSummary, name_of
from osmosis_ai.store.schema import open_writable
from osmosis_ai.store.workspace import Workspace

UNUSED_MESSAGES = """
    DELETE FROM message WHERE id NOT IN (
        SELECT each.value FROM turn, json_each(turn.messages) AS each
        UNION SELECT response FROM turn
        UNION SELECT each.value FROM sample, json_each(sample.messages) AS each)
"""
WAIT_MS = 1_000  # for another process to close the database
UNUSED_TOOLS = "DELETE FROM tools WHERE id NOT IN (SELECT tools FROM turn)"


@dataclass(frozen=True, slots=True)
class Retention:
    """Which runs may go: those older than `days`, and of each name all but the newest `keep`."""

    days: float | None = None
    keep: int | None = None

    def chosen(self, runs: Iterable[RunSummary], now: float) -> list[str]:
        """The ids of the runs that go, oldest first. Both rules must hold where both are given.

        Runs a, a-2 and a-3 of 40, 20 and 1 days; days 30 -> [a]; keep 1 -> [a, a-2]; both -> [a].
        """
        newest_first = sorted(runs, key=lambda summary: summary.run.created_at, reverse=True)
        seen: dict[str, int] = {}
        gone = []
        for summary in newest_first:
            run = summary.run
            name = name_of(run.run_id, run.config)
            seen[name] = seen.get(name, 0) + 1
            old = self.days is None or now - run.created_at > self.days * 86_400
            surplus = self.keep is None or seen[name] > self.keep
            if old and surplus:
                gone.append(run.run_id)
        return gone[::-1]


@dataclass(frozen=True, slots=True)
class Freed:
    """Sizes of the database in bytes."""

    before: int
    after: int


def delete_runs(workspace: Workspace, run_ids: Sequence[str]) -> Freed:
    """Delete runs with all that is theirs, folders included, and shrink the file.

    Raises StoreError when another process has the database open; nothing is deleted then.
    """
    path = workspace.database
    before = _size(workspace)
    db = open_writable(path)
    try:
        db.set_busy_timeout(WAIT_MS)
        db.pragma("locking_mode", "exclusive")
        with db:
            db.executemany("DELETE FROM run WHERE run_id = ?", [(run_id,) for run_id in run_ids])
            db.execute(UNUSED_MESSAGES)
            db.execute(UNUSED_TOOLS)
        for run_id in run_ids:
            shutil.rmtree(workspace.run_folder(run_id), ignore_errors=True)
        db.execute("VACUUM")
        db.pragma("wal_checkpoint", "truncate")
    except apsw.BusyError as error:
        raise StoreError(
            f"{path} is open in another process: a run, or a look at one. Nothing was deleted; try again "
            "when it has ended."
        ) from error
    finally:
        db.close()
    return Freed(before, _size(workspace))


def _size(workspace: Workspace) -> int:
    log = workspace.database.with_name(workspace.database.name + "-wal")
    return sum(file.stat().st_size for file in (workspace.database, log) if file.exists())
