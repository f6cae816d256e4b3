"""A rollout as trajectories in ATIF-v1.7 (Agent Trajectory Interchange Format), one per branch.

system  ->  step, source "system"
user    ->  step, source "user"
assistant (with tool calls)  ->  step, source "agent", with the metrics of the turn that sampled it
tool    ->  a result in the observation of the agent step before it
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from osmosis_ai.types import Message, Rollout, Row, Turn

SCHEMA = "ATIF-v1.7"
AGENT = "osmosis-rollout-sdk"
SOURCES = {"system": "system", "developer": "system", "user": "user", "assistant": "agent"}


def trajectories(rollout: Rollout, row: Row | None, version: str) -> Iterator[dict[str, Any]]:
    """One document for each branch that no later turn continues; none for a rollout without turns."""
    parents = {turn.parent for turn in rollout.turns}
    leaves = [turn for turn in rollout.turns if turn.ordinal not in parents]
    for leaf in leaves:
        yield _trajectory(rollout, leaf, row, version, alone=len(leaves) == 1)


def _trajectory(
    rollout: Rollout, leaf: Turn, row: Row | None, version: str, *, alone: bool
) -> dict[str, Any]:
    turns = _chain(rollout, leaf)
    steps, unmatched = _steps([*leaf.messages, leaf.response], {len(t.messages): t for t in turns})
    ours = _ours(rollout, leaf, row) | ({"unmatched_tool_results": unmatched} if unmatched else {})
    return {
        "schema_version": SCHEMA,
        "session_id": rollout.rollout_id,
        "trajectory_id": rollout.rollout_id if alone else f"{rollout.rollout_id}.{leaf.ordinal}",
        "agent": _without_none(
            {
                "name": AGENT,
                "version": version,
                "model_name": leaf.model,
                "tool_definitions": leaf.tools or None,
            }
        ),
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(turn.prompt_tokens for turn in turns),
            "total_completion_tokens": sum(turn.completion_tokens for turn in turns),
            "total_steps": len(steps),
        },
        "extra": {"osmosis": ours},
    }


def _chain(rollout: Rollout, leaf: Turn) -> list[Turn]:
    """The turns from the root of the branch to its leaf."""
    by_ordinal = {turn.ordinal: turn for turn in rollout.turns}
    chain = [leaf]
    while (parent := chain[0].parent) is not None:
        chain.insert(0, by_ordinal[parent])
    return chain


def _ours(rollout: Rollout, leaf: Turn, row: Row | None) -> dict[str, Any]:
    sample = rollout.samples.get(leaf.sample_id)
    return {
        "run_id": rollout.run_id,
        "rollout_id": rollout.rollout_id,
        "sample_id": leaf.sample_id,
        "row": rollout.row_index,
        "member": rollout.member,
        "step": rollout.step,
        "status": rollout.status.value,
        "reason": rollout.reason,
        "label": None if row is None else row.label,
        "reward": None if sample is None else sample.reward,
        "sample_metrics": {} if sample is None else _finite(sample.metrics),
        "request_metadata": None if row is None else _finite(row.metadata),
    }


def _steps(
    messages: list[Message], turns: dict[int, Turn]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The steps, and the tool results whose call is in no step before them."""
    steps: list[dict[str, Any]] = []
    unmatched: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            if not _observed(steps, message):
                unmatched.append(_finite(message))
        else:
            steps.append(_step(len(steps) + 1, message, turns.get(index)))
    return steps, unmatched


def _step(number: int, message: Message, turn: Turn | None) -> dict[str, Any]:
    source = SOURCES.get(str(message.get("role")), "user")
    step: dict[str, Any] = {"step_id": number, "source": source, "message": _text(message.get("content"))}
    if source != "agent":
        return step
    step["reasoning_content"] = message.get("reasoning_content") or None
    step["tool_calls"] = [_tool_call(call) for call in message.get("tool_calls") or []] or None
    if turn is not None:
        step |= {"model_name": turn.model, "metrics": _metrics(turn), "llm_call_count": 1}
    return _without_none(step)


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    """Arguments that are no JSON object stay as they came: {"_raw": text}."""
    function = call.get("function", {})
    text = function.get("arguments", "")
    try:
        arguments = json.loads(text)
    except (TypeError, ValueError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"_raw": text}
    return {
        "tool_call_id": str(call.get("id", "")),
        "function_name": str(function.get("name", "")),
        "arguments": _finite(arguments),
    }


def _observed(steps: list[dict[str, Any]], message: Message) -> bool:
    """Put a tool's result to the last agent step; False when that has no such call."""
    agent = next((step for step in reversed(steps) if step["source"] == "agent"), None)
    call_id = message.get("tool_call_id")
    if agent is None or call_id not in {call["tool_call_id"] for call in agent.get("tool_calls", [])}:
        return False
    result = {"source_call_id": call_id, "content": _text(message.get("content"))}
    agent.setdefault("observation", {"results": []})["results"].append(result)
    return True


def _metrics(turn: Turn) -> dict[str, Any]:
    exact = bool(turn.completion_ids)
    return _without_none(
        {
            "prompt_tokens": turn.prompt_tokens,
            "completion_tokens": turn.completion_tokens,
            "prompt_token_ids": turn.prompt_ids if exact else None,
            "completion_token_ids": turn.completion_ids if exact else None,
            "logprobs": _finite(turn.logprobs) if exact else None,
            "extra": {
                "finish_reason": turn.finish_reason,
                "latency_ms": turn.latency_ms,
                "policy_version": turn.policy_version,
            },
        }
    )


def _text(content: Any) -> str:
    """Text parts joined by newlines; other content as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(
        isinstance(p, dict) and isinstance(p.get("text"), str) for p in content
    ):
        return "\n".join(part["text"] for part in content)
    return json.dumps(content, ensure_ascii=False)


def _finite(value: Any) -> Any:
    """NaN and infinity, which ATIF refuses, as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item is not None}
