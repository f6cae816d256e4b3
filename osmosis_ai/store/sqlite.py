"""The store in one SQLite file: WAL, full sync, one writer with group commit, readers beside it.

Messages are stored once, by content. Token ids are stored as what a turn adds to its parent:

    turn 0  parent -  prompt [1, 2]              completion [7, 8]   stored [1, 2] + [7, 8]
    turn 1  parent 0  prompt [1, 2, 7, 8, 3, 4]  completion [9]      stored [3, 4] + [9]

Each turn also keeps the length (4, 7) and a digest of its whole sequence: `append_turn` proves with it that a
prompt starts with the parent's tokens, and `rollouts` that what it restored is what was appended.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import apsw

from osmosis_ai.errors import StoreError
from osmosis_ai.store.admissions import SqliteAdmissions
from osmosis_ai.store.appending import not_next, prove_parent, status_of
from osmosis_ai.store.base import Native, RolloutFilter, RunRecord, RunState, RunSummary, StepRecord
from osmosis_ai.store.columns import (
    INSERT_NEXT_TURN,
    MESSAGES_OF_ROLLOUT,
    NATIVES,
    RUN_COLUMNS,
    PackedSample,
    PackedTurn,
    RecordedTurn,
    pack_sample,
    pack_turn,
    read_names,
    read_rollouts,
    read_run,
    read_summaries,
)
from osmosis_ai.store.native import Bodies, Columns, read_natives
from osmosis_ai.store.outcomes import read_outcomes
from osmosis_ai.store.packing import Content, printable, to_json
from osmosis_ai.store.schema import open_readonly, open_writable
from osmosis_ai.store.writer import Writer, store_error
from osmosis_ai.types import Outcome, Rollout, Sample, Status, Turn

T = TypeVar("T")

MAX_KNOWN_CONTENTS = 10_000  # hashes of stored messages that the writer remembers
MAX_RECORDED = 8  # turns of a running rollout that are remembered
INTERRUPTED = "the run was stopped while it ran"


class SqliteStore:
    """Implements the `Store` protocol in the file `path`, which is made when it does not exist."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._known: dict[tuple[str, bytes], int] = {}  # (table, hash) -> id; used inside writes only
        # The latest turns of the rollouts that run, by rollout id and ordinal.
        self._recorded: dict[str, dict[int, RecordedTurn]] = {}
        self._bodies = Bodies()
        self._db = open_writable(self.path)
        self._writer = Writer(self._db, self.path, self._known.clear)
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="osmosis-store-read")
        self._local = threading.local()
        self._read_connections: list[apsw.Connection] = []
        self.admissions = SqliteAdmissions(self._writer.write, self._read)

    # --- runs ---------------------------------------------------------------------------------------

    async def create_run(self, run: RunRecord) -> None:
        values = (
            run.run_id,
            run.kind,
            run.state,
            run.created_at,
            to_json(run.identity),
            to_json(run.config),
            printable(run.error),
            to_json([asdict(amendment) for amendment in run.lineage]),
        )

        def work(db: apsw.Connection) -> None:
            if db.execute("SELECT 1 FROM run WHERE run_id = ?", (run.run_id,)).get is not None:
                raise StoreError(f"run {run.run_id!r} exists already in {self.path}; choose another name")
            db.execute(f"INSERT INTO run ({RUN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

        await self._writer.write(work)

    async def finish_run(self, run_id: str, state: RunState, error: str = "") -> None:
        await self._writer.write(lambda db: self._set_state(db, run_id, state, error))

    async def resume_run(self, run_id: str) -> int:
        def work(db: apsw.Connection) -> int:
            self._set_state(db, run_id, "running", "")
            db.execute(
                "UPDATE rollout SET status = ?, reason = ? WHERE run_id = ? AND status = ?",
                (Status.INFRASTRUCTURE.value, INTERRUPTED, run_id, Status.RUNNING.value),
            )
            return db.changes()

        return await self._writer.write(work)

    async def amend_run(self, run: RunRecord) -> None:
        lineage = to_json([asdict(amendment) for amendment in run.lineage])
        values = (to_json(run.identity), to_json(run.config), lineage, run.run_id)
        query = "UPDATE run SET identity = ?, config = ?, lineage = ? WHERE run_id = ?"
        await self._writer.write(lambda db: db.execute(query, values).close())

    def _set_state(self, db: apsw.Connection, run_id: str, state: RunState, error: str) -> None:
        db.execute("UPDATE run SET state = ?, error = ? WHERE run_id = ?", (state, printable(error), run_id))
        if db.changes() == 0:
            raise StoreError(f"there is no run {run_id!r} in {self.path}")

    async def get_run(self, run_id: str) -> RunRecord | None:
        def work(db: apsw.Connection) -> RunRecord | None:
            row = db.execute(f"SELECT {RUN_COLUMNS} FROM run WHERE run_id = ?", (run_id,)).fetchone()
            return read_run(row) if row else None

        return await self._read(work)

    async def run_names(self) -> dict[str, str]:
        return await self._read(read_names)

    async def list_runs(self) -> list[RunSummary]:
        return await self._read(read_summaries)

    # --- rollouts -----------------------------------------------------------------------------------

    async def start_rollout(self, rollout: Rollout) -> None:
        if rollout.status is not Status.RUNNING or rollout.turns or rollout.samples:
            raise StoreError(
                f"rollout {rollout.rollout_id!r} cannot start: it is {rollout.status.value} "
                f"with {len(rollout.turns)} turns and {len(rollout.samples)} samples"
            )
        values = (
            rollout.rollout_id,
            rollout.run_id,
            rollout.row_index,
            rollout.group_id,
            rollout.member,
            rollout.attempt,
            rollout.step,
            rollout.status.value,
            printable(rollout.reason),
            rollout.started_at,
            rollout.duration_seconds,
        )

        def work(db: apsw.Connection) -> None:
            if status_of(db, rollout.rollout_id) is not None:
                raise StoreError(f"rollout {rollout.rollout_id!r} has been started already in {self.path}")
            if db.execute("SELECT 1 FROM run WHERE run_id = ?", (rollout.run_id,)).get is None:
                raise StoreError(f"there is no run {rollout.run_id!r} in {self.path}")
            db.execute("INSERT INTO rollout VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

        await self._writer.write(work)

    async def append_turn(self, turn: Turn, call: str | None = None, native: Native | None = None) -> None:
        parent = None
        if turn.parent is not None:
            parent = self._recorded.get(turn.rollout_id, {}).get(turn.parent)
        packed = pack_turn(turn, parent, call)
        bodies = self._bodies.pack(turn, native, len(packed.known), packed.messages, packed.response)
        recorded = await self._writer.write(lambda db: self._insert_turn(db, turn, packed, bodies, parent))
        # Only what is on disk is remembered, and of each rollout the latest, which most turns continue.
        self._bodies.stored(turn.rollout_id, turn.sample_id, native)
        latest = self._recorded.setdefault(turn.rollout_id, {})
        latest[turn.ordinal] = recorded
        latest.pop(turn.ordinal - MAX_RECORDED, None)

    async def end_rollout(
        self, rollout_id: str, status: Status, reason: str, samples: Sequence[Sample], duration_seconds: float
    ) -> bool:
        if not status.is_terminal:
            raise StoreError(f"rollout {rollout_id!r} cannot end with status {status.value!r}")
        packed = [pack_sample(rollout_id, sample) for sample in samples]
        self.forget(rollout_id)

        def work(db: apsw.Connection) -> bool:
            db.execute(
                "UPDATE rollout SET status = ?, reason = ?, duration_seconds = ? "
                "WHERE rollout_id = ? AND status = ?",
                (status.value, printable(reason), duration_seconds, rollout_id, Status.RUNNING.value),
            )
            if db.changes() == 0:
                if status_of(db, rollout_id) is None:
                    raise StoreError(f"there is no rollout {rollout_id!r} in {self.path}")
                return False
            for position, sample in enumerate(packed):
                self._insert_sample(db, rollout_id, position, sample)
            return True

        return await self._writer.write(work)

    def forget(self, rollout_id: str) -> None:
        self._recorded.pop(rollout_id, None)
        self._bodies.forget(rollout_id)

    async def supersede(self, rollout_ids: Sequence[str]) -> int:
        ids = json.dumps(list(rollout_ids))

        def work(db: apsw.Connection) -> int:
            db.execute(
                "UPDATE rollout SET status = ?1, reason = 'ended as ' || status "
                "|| ', then another took its place' || iif(reason = '', '', ': ' || reason) "
                "WHERE rollout_id IN (SELECT value FROM json_each(?2)) AND status NOT IN (?1, ?3)",
                (Status.SUPERSEDED.value, ids, Status.RUNNING.value),
            )
            return db.changes()

        return await self._writer.write(work)

    async def rollouts(self, where: RolloutFilter, *, turns: bool = True) -> list[Rollout]:
        return await self._read(lambda db: read_rollouts(db, where, turns))

    async def outcomes(self, where: RolloutFilter) -> list[Outcome]:
        return await self._read(lambda db: read_outcomes(db, where))

    # --- steps --------------------------------------------------------------------------------------

    async def finish_step(self, step: StepRecord) -> None:
        values = (
            step.run_id,
            step.step,
            step.version,
            step.checkpoint,
            to_json(step.metrics),
            step.finished_at,
        )
        await self._writer.write(
            lambda db: db.execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?, ?, ?)", values).close()
        )

    async def steps(self, run_id: str) -> list[StepRecord]:
        def work(db: apsw.Connection) -> list[StepRecord]:
            rows = db.execute(
                "SELECT run_id, step, version, checkpoint, metrics, finished_at FROM step "
                "WHERE run_id = ? ORDER BY step",
                (run_id,),
            )
            return [StepRecord(r, s, v, c, json.loads(m), t) for r, s, v, c, m, t in rows]

        return await self._read(work)

    async def natives(self, rollout_id: str) -> dict[int, Native]:
        def work(db: apsw.Connection) -> dict[int, Native]:
            messages: list[Any] = db.execute(MESSAGES_OF_ROLLOUT, (rollout_id,)).fetchall()
            return read_natives(db.execute(NATIVES, (rollout_id,)), dict(messages))

        return await self._read(work)

    # --- life ---------------------------------------------------------------------------------------

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        self._readers.shutdown(wait=True)
        while self._read_connections:
            self._read_connections.pop().close()
        self._db.close()  # last: it moves the write-ahead log into the database file

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on a reader's own connection, off the event loop, against one snapshot."""
        if self._writer.closed:
            raise StoreError(f"{self.path}: the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._snapshot, work)

    def _snapshot(self, work: Callable[[apsw.Connection], T]) -> T:
        try:
            db = self._reader()
            with db:  # a savepoint: all SELECTs inside see the same commit
                result = work(db)
            return result
        except apsw.Error as error:
            raise store_error(self.path, error) from error

    def _reader(self) -> apsw.Connection:
        db: apsw.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = open_readonly(self.path)
            self._local.db = db
            self._read_connections.append(db)
        return db

    # --- inside a write -----------------------------------------------------------------------------

    def _insert_turn(
        self,
        db: apsw.Connection,
        turn: Turn,
        packed: PackedTurn,
        bodies: Columns,
        parent: RecordedTurn | None,
    ) -> RecordedTurn:
        name = f"turn {turn.ordinal} of rollout {turn.rollout_id!r}"
        shared, tokens_digest = prove_parent(db, turn, packed, parent, name)
        message_ids = packed.known + [self._content_id(db, "message", content) for content in packed.messages]
        response_id = self._content_id(db, "message", packed.response)
        total_tokens = len(turn.prompt_ids) + len(turn.completion_ids)
        values = (
            turn.rollout_id,
            turn.ordinal,
            turn.sample_id,
            turn.parent,
            turn.branch_reason,
            to_json(message_ids),
            self._content_id(db, "tools", packed.tools),
            response_id,
            turn.finish_reason,
            packed.prompt_ids[4 * shared :],
            packed.completion_ids,
            packed.logprobs,
            total_tokens,
            tokens_digest,
            turn.policy_version,
            turn.prompt_tokens,
            turn.completion_tokens,
            packed.sampling,
            turn.model,
            turn.malformed_tool_calls,
            turn.latency_ms,
            packed.call,
            *bodies,
        )
        db.execute(INSERT_NEXT_TURN, values)
        if db.changes() == 0:
            raise not_next(db, turn, name)
        return RecordedTurn(
            sample_id=turn.sample_id,
            messages=[*turn.messages, turn.response],
            message_ids=[*message_ids, response_id],
            tools=turn.tools,
            packed_tools=packed.tools,
            total_tokens=total_tokens,
            tokens_digest=tokens_digest,
        )

    def _insert_sample(
        self, db: apsw.Connection, rollout_id: str, position: int, packed: PackedSample
    ) -> None:
        sample = packed.sample
        db.execute(
            "INSERT INTO sample VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                rollout_id,
                sample.sample_id,
                position,
                self._message_ids(db, packed.messages),
                sample.reward,
                int(sample.removed),
                packed.metrics,
                int(sample.frozen),
            ),
        )

    def _message_ids(self, db: apsw.Connection, messages: list[Content]) -> str:
        return to_json([self._content_id(db, "message", content) for content in messages])

    def _content_id(self, db: apsw.Connection, table: str, content: Content) -> int:
        """The id of the row that holds this JSON; made when there is none."""
        key = (table, content.hash)
        known = self._known.get(key)
        if known is not None:
            return known
        if len(self._known) >= MAX_KNOWN_CONTENTS:
            self._known.clear()
        # Most are new: insert first, and look only when another process or an earlier run had it.
        db.execute(f"INSERT OR IGNORE INTO {table} (hash, json) VALUES (?, ?)", (content.hash, content.json))
        if db.changes():
            content_id = db.last_insert_rowid()
        else:
            content_id = db.execute(f"SELECT id FROM {table} WHERE hash = ?", (content.hash,)).get
        self._known[key] = content_id
        return content_id
