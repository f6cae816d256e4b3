"""Nouns to columns before a write, and columns back to nouns."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import apsw

from osmosis_ai.errors import StoreError
from osmosis_ai.store.base import Amendment, RolloutFilter, RunRecord, RunSummary, name_of
from osmosis_ai.store.packing import (
    Content,
    digest,
    pack_ids,
    pack_logprobs,
    to_json,
    unpack_ids,
    unpack_logprobs,
)
from osmosis_ai.types import Message, Rollout, Sample, Status, Turn


@dataclass(frozen=True, slots=True)
class PackedTurn:
    """A turn's variable parts, encoded before the write: a later change of its lists changes nothing."""

    known: list[int]  # rows of the leading messages, which are the parent's own
    messages: list[Content]  # the other messages
    tools: Content
    response: Content
    sampling: str
    prompt_ids: bytes
    completion_ids: bytes
    logprobs: bytes
    call: str | None


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """What is remembered of a turn while its rollout runs, so that a child costs only what it adds.

    The child's messages that are the very objects of this turn are not read again: whoever appends a turn
    does not change its messages afterwards.
    """

    sample_id: str
    messages: list[Message]  # with the response at the end
    message_ids: list[int]  # their rows
    tools: list[dict[str, Any]]
    packed_tools: Content
    total_tokens: int
    tokens_digest: bytes

    def rows_of(self, messages: list[Message]) -> list[int]:
        """Rows of the leading messages that are this turn's own."""
        count = 0
        for mine, message in zip(self.messages, messages, strict=False):
            if mine is not message:
                break
            count += 1
        return self.message_ids[:count]


@dataclass(frozen=True, slots=True)
class PackedSample:
    sample: Sample
    messages: list[Content]
    metrics: str


def pack_turn(turn: Turn, parent: RecordedTurn | None, call: str | None) -> PackedTurn:
    name = f"turn {turn.ordinal} of rollout {turn.rollout_id!r}"
    if len(turn.logprobs) != len(turn.completion_ids):
        raise StoreError(
            f"{name} has {len(turn.completion_ids)} completion tokens but {len(turn.logprobs)} logprobs"
        )
    known = parent.rows_of(turn.messages) if parent is not None else []
    try:
        return PackedTurn(
            known=known,
            messages=[Content.of(message) for message in turn.messages[len(known) :]],
            tools=_packed_tools(turn, parent),
            response=Content.of(turn.response),
            sampling=to_json(turn.sampling),
            prompt_ids=pack_ids(turn.prompt_ids),
            completion_ids=pack_ids(turn.completion_ids),
            logprobs=pack_logprobs(turn.logprobs),
            call=call,
        )
    except StoreError as error:
        raise StoreError(f"{name} cannot be stored: {error}") from error


def _packed_tools(turn: Turn, parent: RecordedTurn | None) -> Content:
    if parent is not None and parent.tools is turn.tools:
        return parent.packed_tools
    return Content.of(turn.tools)


def pack_sample(rollout_id: str, sample: Sample) -> PackedSample:
    if sample.reward is not None and not math.isfinite(sample.reward):
        raise StoreError(
            f"sample {sample.sample_id!r} of rollout {rollout_id!r} has reward {sample.reward}; "
            "a reward is a finite number, and no reward is None"
        )
    return PackedSample(sample, [Content.of(message) for message in sample.messages], to_json(sample.metrics))


RUN_COLUMNS = "run_id, kind, state, created_at, identity, config, error, lineage"
_ROLLOUT = (
    "rollout_id, run_id, row_index, group_id, member, attempt, step, status, reason, started_at, "
    "duration_seconds"
)
_TURN = (
    "rollout_id, ordinal, sample_id, parent, branch_reason, messages, tools, response, finish_reason, "
    "new_prompt_ids, completion_ids, logprobs, total_tokens, tokens_digest, policy_version, prompt_tokens, "
    "completion_tokens, sampling, model, malformed_tool_calls, latency_ms"
)
# Adds nothing unless the rollout runs and the turn is its next.
INSERT_NEXT_TURN = (
    f"INSERT INTO turn ({_TURN}, call, wire, sent, answered) "
    f"SELECT {', '.join(f'?{i}' for i in range(1, 26))} "
    "WHERE (SELECT status FROM rollout WHERE rollout_id = ?1) = 'running' "
    "AND (SELECT coalesce(max(ordinal) + 1, 0) FROM turn WHERE rollout_id = ?1) = ?2"
)
NATIVES = (
    "SELECT ordinal, sample_id, wire, sent, answered, messages, response FROM turn "
    "WHERE rollout_id = ? AND sent IS NOT NULL ORDER BY ordinal"
)
MESSAGES_OF_ROLLOUT = (
    "SELECT id, json FROM message WHERE id IN (SELECT value FROM turn, json_each(turn.messages) "
    "WHERE rollout_id = ?1 UNION ALL SELECT response FROM turn WHERE rollout_id = ?1)"
)
_AMONG = "IN (SELECT value FROM json_each(?))"

Record = tuple[Any, ...]


def read_run(row: Record) -> RunRecord:
    run_id, kind, state, created_at, identity, config, error, lineage = row
    amendments = [Amendment(**amendment) for amendment in json.loads(lineage)]
    return RunRecord(
        run_id, kind, state, created_at, json.loads(identity), json.loads(config), error, amendments
    )


def read_names(db: apsw.Connection) -> dict[str, str]:
    """Run id -> the name that was asked for."""
    rows = db.execute("SELECT run_id, config FROM run")
    return {run_id: name_of(run_id, json.loads(config)) for run_id, config in rows}


def read_summaries(db: apsw.Connection) -> list[RunSummary]:
    runs = db.execute(f"SELECT {RUN_COLUMNS} FROM run ORDER BY created_at DESC, rowid DESC").fetchall()
    counts: dict[Any, dict[Any, Any]] = {}
    for run_id, status, count in db.execute("SELECT run_id, status, count(*) FROM rollout GROUP BY 1, 2"):
        counts.setdefault(run_id, {})[status] = count
    rewards = pairs(db, "SELECT run_id, avg(reward) FROM rollout_reward GROUP BY 1")
    last_steps = pairs(db, "SELECT run_id, max(step) FROM step GROUP BY 1")
    return [
        RunSummary(read_run(row), counts.get(row[0], {}), rewards.get(row[0]), last_steps.get(row[0], 0))
        for row in runs
    ]


def pairs(db: apsw.Connection, query: str, values: tuple[Any, ...] = ()) -> dict[Any, Any]:
    rows: list[Any] = db.execute(query, values).fetchall()
    return dict(rows)


def read_rollouts(db: apsw.Connection, where: RolloutFilter, with_turns: bool) -> list[Rollout]:
    clause, values = where_clause(where)
    found = {
        row[0]: _rollout(row)
        for row in db.execute(
            f"SELECT {_ROLLOUT} FROM rollout WHERE {clause} ORDER BY started_at, rowid", values
        )
    }
    ids = (json.dumps(list(found)),)
    samples = db.execute(
        f"SELECT * FROM sample WHERE rollout_id {_AMONG} ORDER BY rollout_id, position", ids
    ).fetchall()
    turns: list[Record] = []
    if with_turns:
        query = f"SELECT {_TURN} FROM turn WHERE rollout_id {_AMONG} ORDER BY rollout_id, ordinal"
        turns = db.execute(query, ids).fetchall()
    contents = _contents(db, samples, turns)
    for row in samples:
        sample = _sample(row, contents)
        found[row[0]].samples[sample.sample_id] = sample
    for row in turns:
        rollout = found[row[0]]
        rollout.turns.append(_turn(row, rollout.turns, contents))
    return list(found.values())


def where_clause(where: RolloutFilter) -> tuple[str, tuple[Any, ...]]:
    clauses: list[tuple[str, Any]] = [("run_id = ?", where.run_id)]
    if where.step is not None:
        clauses.append(("step = ?", where.step))
    if where.row_index is not None:
        clauses.append(("row_index = ?", where.row_index))
    if where.statuses:
        clauses.append((f"status {_AMONG}", json.dumps([status.value for status in where.statuses])))
    if where.rollout_ids:
        clauses.append((f"rollout_id {_AMONG}", json.dumps(list(where.rollout_ids))))
    return " AND ".join(clause for clause, _ in clauses), tuple(value for _, value in clauses)


def _rollout(row: Record) -> Rollout:
    rollout_id, run_id, row_index, group_id, member, attempt, step, status, reason, started_at, seconds = row
    return Rollout(
        rollout_id=rollout_id,
        run_id=run_id,
        row_index=row_index,
        group_id=group_id,
        member=member,
        attempt=attempt,
        step=step,
        status=Status(status),
        reason=reason,
        started_at=started_at,
        duration_seconds=seconds,
    )


@dataclass(frozen=True, slots=True)
class _Contents:
    """The messages and tool lists that the rows at hand refer to, each read once."""

    messages: dict[int, Message]
    tools: dict[int, list[dict[str, Any]]]

    def list_of(self, ids: str) -> list[Message]:
        return [self.messages[message_id] for message_id in json.loads(ids)]


def _contents(db: apsw.Connection, samples: list[Record], turns: list[Record]) -> _Contents:
    message_ids = {row[7] for row in turns}
    for ids in {row[3] for row in samples} | {row[5] for row in turns}:
        message_ids.update(json.loads(ids))
    return _Contents(_by_id(db, "message", message_ids), _by_id(db, "tools", {row[6] for row in turns}))


def _by_id(db: apsw.Connection, table: str, ids: set[int]) -> dict[int, Any]:
    rows = db.execute(f"SELECT id, json FROM {table} WHERE id {_AMONG}", (json.dumps(sorted(ids)),))
    return {content_id: json.loads(text) for content_id, text in rows}


def _sample(row: Record, contents: _Contents) -> Sample:
    _, sample_id, _, messages, reward, removed, metrics, frozen = row
    return Sample(
        sample_id, contents.list_of(messages), reward, bool(removed), json.loads(metrics), bool(frozen)
    )


def _turn(row: Record, earlier: list[Turn], contents: _Contents) -> Turn:
    (rollout_id, ordinal, sample_id, parent, branch_reason, messages, tools, response, finish_reason) = row[
        :9
    ]
    (new_prompt_ids, completion_ids, logprobs, _, tokens_digest, policy_version) = row[9:15]
    (prompt_tokens, completion_tokens, sampling, model, malformed_tool_calls, latency_ms) = row[15:]
    prompt = unpack_ids(new_prompt_ids)
    completion = unpack_ids(completion_ids)
    if parent is not None:
        prompt = earlier[parent].prompt_ids + earlier[parent].completion_ids + prompt
    if digest(pack_ids(prompt) + completion_ids) != tokens_digest:
        raise StoreError(
            f"the tokens of turn {ordinal} of rollout {rollout_id!r} are not those that were appended: "
            "the database was changed or is damaged. Restore it from a copy."
        )
    return Turn(
        rollout_id=rollout_id,
        sample_id=sample_id,
        ordinal=ordinal,
        parent=parent,
        branch_reason=branch_reason,
        messages=contents.list_of(messages),
        tools=contents.tools[tools],
        response=contents.messages[response],
        finish_reason=finish_reason,
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=unpack_logprobs(logprobs),
        policy_version=policy_version,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        sampling=json.loads(sampling),
        model=model,
        malformed_tool_calls=malformed_tool_calls,
        latency_ms=latency_ms,
    )
