"""Rollouts as a few numbers each, added up by SQLite: no message and no token is read."""

from __future__ import annotations

import json
from typing import Any

import apsw

from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.columns import Record, pairs, where_clause
from osmosis_ai.types import TOOL_ERRORS, Outcome, Status

_OUTCOME = (
    "rollout_id, row_index, group_id, member, attempt, step, status, reason, started_at, duration_seconds"
)
_TURNS = (
    "count(*), sum(prompt_tokens), sum(completion_tokens), coalesce(sum(sampling ->> '$.cached_tokens'), 0), "
    "sum(malformed_tool_calls), sum(latency_ms) / 1000"
)
_FAILED_TOOL = " OR ".join(
    ["json ->> '$.is_error'", *(f"json ->> '$.content' GLOB '{text}*'" for text in TOOL_ERRORS)]
)


def read_outcomes(db: apsw.Connection, where: RolloutFilter) -> list[Outcome]:
    clause, values = where_clause(where)
    wanted = f"WITH wanted AS (SELECT rollout_id FROM rollout WHERE {clause}) SELECT rollout_id, "
    rewards = pairs(db, f"{wanted} reward FROM rollout_reward JOIN wanted USING (rollout_id)", values)
    of_turns = "FROM turn JOIN wanted USING (rollout_id) WHERE {} GROUP BY {}"
    turns = {
        rollout_id: counts
        for rollout_id, *counts in db.execute(f"{wanted} {_TURNS} {of_turns.format('true', 1)}", values)
    }
    branches: dict[str, dict[str, int]] = {}
    in_branches = of_turns.format("branch_reason IS NOT NULL", "1, 2")
    for rollout_id, reason, count in db.execute(f"{wanted} branch_reason, count(*) {in_branches}", values):
        branches.setdefault(rollout_id, {})[reason] = count
    tool_errors = _tool_errors(db, wanted, values)
    query = f"SELECT {_OUTCOME} FROM rollout WHERE {clause} ORDER BY started_at, rowid"
    return [
        _outcome(
            row,
            rewards.get(row[0]),
            turns.get(row[0], [0] * 6),
            branches.get(row[0], {}),
            tool_errors.get(row[0], 0),
        )
        for row in db.execute(query, values)
    ]


def _tool_errors(db: apsw.Connection, wanted: str, values: tuple[Any, ...]) -> dict[str, int]:
    """By rollout. A message is stored once, however many turns repeat it; most stores hold none of these."""
    failed = [
        message_id
        for (message_id,) in db.execute(
            f"SELECT id FROM message WHERE json LIKE '%\"tool\"%' AND json ->> '$.role' = 'tool' "
            f"AND ({_FAILED_TOOL})"
        )
    ]
    if not failed:
        return {}
    query = (
        f"{wanted} count(DISTINCT e.value) "
        "FROM turn JOIN wanted USING (rollout_id), json_each(turn.messages) e "
        "WHERE e.value IN (SELECT value FROM json_each(?)) GROUP BY 1"
    )
    return pairs(db, query, (*values, json.dumps(failed)))


def _outcome(
    row: Record, reward: float | None, turns: list[Any], branches: dict[str, int], tool_errors: int
) -> Outcome:
    rollout_id, row_index, group_id, member, attempt, step, status, reason, started_at, seconds = row
    num_turns, prompt_tokens, completion_tokens, cached_tokens, malformed_tool_calls, model_seconds = turns
    return Outcome(
        rollout_id=rollout_id,
        row_index=row_index,
        group_id=group_id,
        member=member,
        attempt=attempt,
        step=step,
        status=Status(status),
        reason=reason,
        reward=reward,
        turns=num_turns,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
        malformed_tool_calls=malformed_tool_calls,
        tool_errors=tool_errors,
        branches=branches,
        model_seconds=model_seconds,
        started_at=started_at,
        duration_seconds=seconds,
    )
