"""A rollout in full, as text: messages, tool calls, rewards. Model text never controls the terminal."""

from __future__ import annotations

import json
from typing import Any

from osmosis_ai.types import Message, Rollout, Turn


def printable(text: str) -> str:
    """Control characters as visible escapes: no output of a model moves the cursor or rings a bell."""
    return "".join(c if c in "\n\t" or c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def transcript(rollout: Rollout) -> str:
    """Every sample's conversation as the gateway recorded it, with reward, tokens and timing."""
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    lines = [
        f"rollout {rollout.rollout_id}  row {rollout.row_index}  {rollout.status.value}  {reward}  "
        f"{len(rollout.turns)} turns  {rollout.sampled_tokens} sampled tokens  "
        f"{rollout.duration_seconds:.2f} s"
    ]
    if rollout.reason:
        lines.append(f"  reason: {printable(rollout.reason)}")
    for leaf in _leaves(rollout.turns):
        sample = rollout.samples.get(leaf.sample_id)
        note = "" if sample is None or sample.reward is None else f"  reward {sample.reward:g}"
        version = "" if leaf.policy_version is None else f"  policy version {leaf.policy_version}"
        lines.append(f"  sample {leaf.sample_id}{note}{version}{_branch(leaf, rollout.turns)}")
        for message in [*leaf.messages, leaf.response]:
            lines += message_lines(message)
    return "\n".join(lines)


def _leaves(turns: list[Turn]) -> list[Turn]:
    parents = {turn.parent for turn in turns}
    return [turn for turn in turns if turn.ordinal not in parents]


def _branch(leaf: Turn, turns: list[Turn]) -> str:
    """Why this conversation does not continue what was there before it."""
    by_ordinal = {turn.ordinal: turn for turn in turns}
    reasons: list[str] = []
    turn: Turn | None = leaf
    while turn is not None:
        reasons += [turn.branch_reason] if turn.branch_reason else []
        turn = None if turn.parent is None else by_ordinal.get(turn.parent)
    return f"  branch: {', '.join(reversed(reasons))}" if reasons else ""


def message_lines(message: Message) -> list[str]:
    """A message with its role before it, a line for each line of it."""
    role = str(message.get("role", "?"))
    texts = [_text(message.get("content"))]
    for call in message.get("tool_calls") or []:
        function = call.get("function", {})
        texts.append(f"calls {function.get('name')}({function.get('arguments')})")
    lines = [line for text in texts if text for line in printable(text).splitlines()] or [""]
    return [f"    {role if i == 0 else '':>9} | {line}" for i, line in enumerate(lines)]


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return json.dumps(content, ensure_ascii=False)
