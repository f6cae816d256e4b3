"""A rollout as the conversations that a person reads, each from its first message to its last answer."""

from __future__ import annotations

from dataclasses import dataclass

from osmosis_ai.types import Message, Rollout, Turn


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said up to and with the answer of `leaf`, which no later call continues.

    Turn 0 answers [system, user], turn 1 [system, user, answer 0, tool]: one conversation of five messages,
    with `turns` {2: turn 0, 4: turn 1}.
    """

    leaf: Turn
    turns: dict[int, Turn]  # by the place of their answers among the messages, the latest first

    @property
    def messages(self) -> list[Message]:
        return [*self.leaf.messages, self.leaf.response]

    @property
    def branch(self) -> str:
        """Why this conversation does not continue what was there before it; "" when it does."""
        return ", ".join(turn.branch_reason for turn in reversed(self.turns.values()) if turn.branch_reason)


def conversations_of(rollout: Rollout) -> list[Conversation]:
    """Every branch as the gateway recorded it."""
    by_ordinal = {turn.ordinal: turn for turn in rollout.turns}
    parents = {turn.parent for turn in rollout.turns}
    return [_ending_with(turn, by_ordinal) for turn in rollout.turns if turn.ordinal not in parents]


def _ending_with(leaf: Turn, by_ordinal: dict[int, Turn]) -> Conversation:
    turns = {len(leaf.messages): leaf}
    turn: Turn | None = leaf
    while turn is not None and turn.parent is not None:
        turn = by_ordinal.get(turn.parent)
        if turn is not None:
            turns[len(turn.messages)] = turn
    return Conversation(leaf, turns)


def model_seconds(rollout: Rollout) -> float:
    """From each call to its answer, summed over the turns."""
    return sum(turn.latency_ms for turn in rollout.turns) / 1000


def reasoning_of(message: Message) -> str:
    """What the model wrote for itself, in whichever field its endpoint puts it; "" where there is none."""
    for key in ("reasoning_content", "reasoning"):
        if isinstance(text := message.get(key), str) and text:
            return text
    blocks = message.get("thinking_blocks")
    parts = [block.get("thinking") for block in blocks or [] if isinstance(block, dict)]
    return "\n".join(part for part in parts if isinstance(part, str))
