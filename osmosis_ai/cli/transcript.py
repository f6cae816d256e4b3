"""A rollout in full, as text: messages, tool calls, rewards. Model text never controls the terminal."""

from __future__ import annotations

import json
from typing import Any

from osmosis_ai.eval.conversations import conversations_of, model_seconds, reasoning_of
from osmosis_ai.types import Message, Rollout, Turn


def printable(text: str) -> str:
    """Control characters as visible escapes: no output of a model moves the cursor or rings a bell."""
    return "".join(c if c in "\n\t" or c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def transcript(rollout: Rollout) -> str:
    """Every sample's conversation as the gateway recorded it, with reward, tokens and timing.

    Under each answer: seconds from the call to its answer, tokens of prompt and completion, why it ended.
    """
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    lines = [
        f"rollout {rollout.rollout_id}  row {rollout.row_index}  {rollout.status.value}  {reward}  "
        f"{len(rollout.turns)} turns  {rollout.sampled_tokens} sampled tokens  "
        f"{rollout.duration_seconds:.2f} s, model calls {model_seconds(rollout):.2f} s"
    ]
    if rollout.reason:
        lines.append(f"  reason: {printable(rollout.reason)}")
    for conversation in conversations_of(rollout):
        leaf = conversation.leaf
        version = "" if leaf.policy_version is None else f"  policy version {leaf.policy_version}"
        sample = rollout.samples.get(leaf.sample_id)
        note = "" if sample is None or sample.reward is None else f"  reward {sample.reward:g}"
        branch = f"  branch: {conversation.branch}" if conversation.branch else ""
        lines.append(f"  sample {printable(leaf.sample_id)}{note}{version}{branch}")
        if sample is not None and sample.metrics:
            lines += _block("metrics", ["  ".join(f"{k} {v:g}" for k, v in sample.metrics.items())])
        for position, message in enumerate(conversation.messages):
            lines += message_lines(message)
            if position in conversation.turns:
                lines.append(f"    {'':>9} |   {_timing(conversation.turns[position])}")
    return "\n".join(lines)


def _timing(turn: Turn) -> str:
    tokens = f"{turn.prompt_tokens} + {turn.completion_tokens} tokens"
    malformed = f", {turn.malformed_tool_calls} malformed tool calls" if turn.malformed_tool_calls else ""
    return f"[{turn.latency_ms / 1000:.2f} s, {tokens}, {printable(turn.finish_reason)}{malformed}]"


def message_lines(message: Message) -> list[str]:
    """A message with its role before it, a line for each line of it; reasoning before the answer."""
    role = str(message.get("role", "?"))
    texts = [_text(message.get("content"))]
    for call in message.get("tool_calls") or []:
        function = call.get("function", {})
        texts.append(f"calls {function.get('name')}({function.get('arguments')})")
    return [*_block("thinks", [reasoning_of(message)]), *(_block(role, texts) or _block(role, [" "]))]


def _block(who: str, texts: list[str]) -> list[str]:
    lines = [line for text in texts if text for line in printable(text).splitlines()]
    return [f"    {who if i == 0 else '':>9} | {line}".rstrip() for i, line in enumerate(lines)]


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return json.dumps(content, ensure_ascii=False)
