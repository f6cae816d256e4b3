"""Admissions in SQLite: which rollouts agents have a key of, and which request each turn answered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import apsw

from osmosis_ai.errors import StoreError
from osmosis_ai.store.base import AdmissionRecord, RolloutFilter
from osmosis_ai.store.columns import read_rollouts
from osmosis_ai.store.packing import to_json
from osmosis_ai.types import ToolSchema, Turn

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

_COLUMNS = "rollout_id, key_digest, gateway, terms, tools, sealed"
_FIND = (
    "SELECT rollout_id, key_digest, gateway, terms, tools, sealed OR status <> 'running' "
    "FROM admission JOIN rollout USING (rollout_id)"
)


class Runs(Protocol):
    """Runs a piece of work on a connection: in a transaction that is on disk after it, or on one snapshot."""

    def __call__(self, work: Work[T]) -> Awaitable[T]: ...


class SqliteAdmissions:
    """Implements `Admissions` on the store's own connections."""

    def __init__(self, write: Runs, read: Runs) -> None:
        self._write = write
        self._read = read

    async def add(self, record: AdmissionRecord) -> None:
        tools = None if record.tools is None else to_json(record.tools)
        values = (record.rollout_id, record.key_digest, record.gateway, to_json(record.terms), tools)

        def work(db: apsw.Connection) -> None:
            try:
                db.execute(f"INSERT INTO admission ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, 0)", values)
            except apsw.ConstraintError as error:
                problem = "has been admitted already, or was never started"
                raise StoreError(f"rollout {record.rollout_id!r} {problem}: {error}") from error

        await self._write(work)

    async def offer_tools(self, rollout_id: str, tools: list[ToolSchema]) -> None:
        await self._update(rollout_id, "tools = coalesce(tools, ?)", to_json(tools))

    async def seal(self, rollout_id: str) -> None:
        await self._update(rollout_id, "sealed = ?", 1)

    async def _update(self, rollout_id: str, change: str, value: Any) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute(f"UPDATE admission SET {change} WHERE rollout_id = ?", (value, rollout_id))
            if db.changes() == 0:
                raise StoreError(f"rollout {rollout_id!r} was not admitted")

        await self._write(work)

    async def by_key(self, key_digest: bytes) -> AdmissionRecord | None:
        return await self._find("key_digest = ?", key_digest)

    async def by_rollout(self, rollout_id: str) -> AdmissionRecord | None:
        return await self._find("rollout_id = ?", rollout_id)

    async def _find(self, clause: str, value: Any) -> AdmissionRecord | None:
        def work(db: apsw.Connection) -> AdmissionRecord | None:
            row = db.execute(f"{_FIND} WHERE {clause}", (value,)).fetchone()
            return _record(row) if row else None

        return await self._read(work)

    async def answered(self, rollout_id: str) -> list[tuple[Turn, dict[str, Any] | None]]:
        def work(db: apsw.Connection) -> list[tuple[Turn, dict[str, Any] | None]]:
            query = "SELECT run_id FROM rollout WHERE rollout_id = ?"
            run_id = db.execute(query, (rollout_id,)).get
            if run_id is None:
                return []
            [rollout] = read_rollouts(db, RolloutFilter(str(run_id), rollout_ids=[rollout_id]), True)
            query = "SELECT call FROM turn WHERE rollout_id = ? ORDER BY ordinal"
            calls = [row[0] for row in db.execute(query, (rollout_id,))]
            return [
                (turn, None if call is None else json.loads(call))
                for turn, call in zip(rollout.turns, calls, strict=True)
            ]

        return await self._read(work)


def _record(row: tuple[Any, ...]) -> AdmissionRecord:
    rollout_id, key_digest, gateway, terms, tools, sealed = row
    known = None if tools is None else json.loads(tools)
    return AdmissionRecord(rollout_id, key_digest, gateway, json.loads(terms), known, bool(sealed))
