"""SQL for people: read only, bounded in time, over tables and a few views with plain names.

The views are temporary, made for each connection, so that they can follow the tables without a migration:

    rollouts  run_id, row, member, attempt, step, status, reward, turns, tokens, seconds, reason, answer,
              rollout_id
    samples   run_id, row, member, sample_id, reward, removed, frozen, metrics, rollout_id
    turns     run_id, row, ordinal, sample_id, answer, tool_calls, finish_reason, prompt_tokens,
              completion_tokens, policy_version, latency_ms, model, rollout_id
    steps     run_id, step, version, reward, loss, seconds, metrics
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import apsw.ext

from osmosis_ai.errors import UsageError
from osmosis_ai.store.schema import open_readonly
from osmosis_ai.store.writer import store_error

VIEWS = {
    "rollouts": """
        SELECT r.run_id, r.row_index AS "row", r.member, r.attempt, r.step, r.status,
               (SELECT avg(s.reward) FROM sample s WHERE r.status = 'graded'
                AND s.rollout_id = r.rollout_id AND NOT s.removed) AS reward,
               count(t.ordinal) AS turns, total(t.completion_tokens) AS tokens,
               r.duration_seconds AS seconds, r.reason,
               (SELECT m.json ->> '$.content' FROM turn l JOIN message m ON m.id = l.response
                WHERE l.rollout_id = r.rollout_id ORDER BY l.ordinal DESC LIMIT 1) AS answer,
               r.rollout_id
        FROM main.rollout r LEFT JOIN main.turn t USING (rollout_id) GROUP BY r.rollout_id""",
    "samples": """
        SELECT r.run_id, r.row_index AS "row", r.member, s.sample_id, s.reward, s.removed,
               s.frozen, s.metrics, r.rollout_id
        FROM main.sample s JOIN main.rollout r USING (rollout_id)""",
    "turns": """
        SELECT r.run_id, r.row_index AS "row", t.ordinal, t.sample_id, m.json ->> '$.content' AS answer,
               m.json -> '$.tool_calls' AS tool_calls, t.finish_reason, t.prompt_tokens,
               t.completion_tokens, t.policy_version, t.latency_ms, t.model, r.rollout_id
        FROM main.turn t JOIN main.rollout r USING (rollout_id) JOIN main.message m ON m.id = t.response""",
    "steps": """
        SELECT run_id, step, version, metrics ->> '$.reward_mean' AS reward, metrics ->> '$.loss' AS loss,
               metrics ->> '$.seconds.step' AS seconds, metrics
        FROM main.step""",
}
STEPS_BETWEEN_CHECKS = 20_000  # of SQLite's virtual machine: a few milliseconds
ALLOWED = {
    apsw.SQLITE_SELECT,
    apsw.SQLITE_READ,
    apsw.SQLITE_FUNCTION,
    apsw.SQLITE_RECURSIVE,
}
READ_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gives: rows are read as they are asked for."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


def query(path: Path, sql: str, *, max_seconds: float) -> Answer:
    """Run one SELECT on the database. Raises UsageError for anything else, and for a mistake in it."""
    try:
        db = open_readonly(path)
    except apsw.Error as error:
        raise store_error(path, error) from error
    try:
        _prepare(db, max_seconds)
        info = apsw.ext.query_info(db, sql)
        if info.query_remaining and info.query_remaining.strip(" ;\n\t"):
            raise UsageError(f"one statement at a time; after the first there is: {info.query_remaining!r}")
        return Answer([name for name, _ in info.description], _rows(db, sql, max_seconds))
    except apsw.Error as error:
        db.close()
        raise _mistake(error, max_seconds) from error
    except BaseException:
        db.close()
        raise


def _prepare(db: apsw.Connection, max_seconds: float) -> None:
    """The views, then nothing but reading, for so long."""
    for name, select in VIEWS.items():
        db.execute(f"CREATE TEMP VIEW {name} AS {select}")
    db.pragma("query_only", True)
    db.enable_load_extension(False)
    db.authorizer = _authorize
    deadline = time.monotonic() + max_seconds
    db.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_CHECKS)


def _authorize(
    operation: int, first: str | None, second: str | None, database: str | None, trigger: str | None
) -> int:
    """SQLite asks before it prepares a statement; everything that is not reading is refused."""
    if operation in ALLOWED and second != "load_extension":
        return apsw.SQLITE_OK
    if operation == apsw.SQLITE_PRAGMA and first in READ_PRAGMAS:
        return apsw.SQLITE_OK
    return apsw.SQLITE_DENY


def _rows(db: apsw.Connection, sql: str, max_seconds: float) -> Iterator[tuple[Any, ...]]:
    with closing(db):
        try:
            yield from db.execute(sql)
        except apsw.Error as error:
            raise _mistake(error, max_seconds) from error


def _mistake(error: apsw.Error, max_seconds: float) -> UsageError:
    match error:
        case apsw.InterruptError():
            return UsageError(f"the query took longer than {max_seconds:g} s; narrow it, or raise --seconds")
        case apsw.AuthError() | apsw.ReadOnlyError():
            return UsageError(f"only reading is allowed here: {error}. Write a SELECT.")
        case apsw.SQLError() if "not authorized" in str(error):  # a function that SQLite itself withholds
            return UsageError(f"only reading is allowed here: {error}. Write a SELECT.")
        case _:
            return UsageError(f"SQLite says: {error}. Views: {', '.join(VIEWS)}; see `osmosis sql --help`.")
