"""Conversations of another model to training samples: what supervised fine-tuning learns from.

Turns that an external provider answered have no tokens of ours. Their text is rendered by the policy's own
chat template and cut at the very places where the gateway would cut it while sampling, so that the policy
learns the token boundaries that it will meet later:

    text       <|im_start|>user\\n2 times 3?<|im_end|>\\n<|im_start|>assistant\\n | 6<|im_end|> | \\n...
    piece      context                                                        | answer      | context
    loss_mask  0 0 0 ...                                                      | 1 1         | 0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from osmosis_ai.errors import UsageError
from osmosis_ai.types import Message, Rollout, ToolSchema, TrainingSample, Turn


class ConversationRenderer(Protocol):
    """The part of the gateway's renderer that is needed here."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, reply: bool) -> str:
        """The text of the messages; with `reply`, up to where the policy begins to answer."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def encode_after(self, end_id: int, text: str) -> list[int]:
        """The tokens of a text that stands behind an end token."""
        ...

    def end_of(self, closed: str) -> tuple[int, str] | None:
        """The end token of a text that ends an assistant turn, and the text behind it."""
        ...


def conversation_samples(rollouts: Iterable[Rollout], renderer: ConversationRenderer) -> list[TrainingSample]:
    """One training sample per conversation: each answer of the recorded model is trained once."""
    rows = []
    for rollout in rollouts:
        trained: set[int] = set()
        by_ordinal = {turn.ordinal: turn for turn in rollout.turns}
        parents = {turn.parent for turn in rollout.turns}
        for leaf in rollout.turns:
            if leaf.ordinal not in parents and _counts(rollout, leaf):
                rows.append(_conversation(leaf, by_ordinal, trained, renderer))
    return rows


def _counts(rollout: Rollout, leaf: Turn) -> bool:
    sample = rollout.samples.get(leaf.sample_id)
    return sample is not None and not sample.removed and not sample.frozen


def _conversation(
    leaf: Turn, by_ordinal: dict[int, Turn], trained: set[int], renderer: ConversationRenderer
) -> TrainingSample:
    path: list[Turn] = [leaf]
    while path[0].parent is not None:
        path.insert(0, by_ordinal[path[0].parent])
    messages = [*leaf.messages, leaf.response]
    token_ids: list[int] = []
    loss_mask: list[int] = []
    done, end_id = "", None  # text that has become tokens, and the end token that it ends with
    for turn in path:
        context, answer, end_id_of_answer = _pieces(messages, len(turn.messages), leaf.tools, done, renderer)
        context_ids = renderer.encode(context) if end_id is None else renderer.encode_after(end_id, context)
        answer_ids = renderer.encode(answer)
        token_ids += context_ids + answer_ids
        loss_mask += [0] * len(context_ids) + [int(turn.ordinal not in trained)] * len(answer_ids)
        trained.add(turn.ordinal)
        done, end_id = done + context + answer, end_id_of_answer
    length = len(token_ids)
    return TrainingSample(
        token_ids=token_ids,
        loss_mask=loss_mask,
        logprobs=[0.0] * length,
        advantages=[float(mask) for mask in loss_mask],
        versions=[-1] * length,
        temperatures=[1.0] * length,
        group_id="",
        rollout_id=leaf.rollout_id,
        sample_id=leaf.sample_id,
    )


def _pieces(
    messages: list[Message], index: int, tools: list[ToolSchema], done: str, renderer: ConversationRenderer
) -> tuple[str, str, int]:
    """The context since `done`, the answer (message `index`) with its end token, and that token's id."""
    before = renderer.render(messages[:index], tools, reply=True)
    after = renderer.render(messages[: index + 1], tools, reply=False)
    if not before.startswith(done) or not after.startswith(before):
        raise UsageError(
            "the policy's chat template is not append-only: rendering one more message changed the text "
            f"of the earlier ones (at message {index}); such a policy cannot learn from conversations."
        )
    answer = after[len(before) :]
    end = renderer.end_of(answer)
    if end is None:
        raise UsageError(f"the chat template does not end an assistant turn with an end token: {answer!r}")
    end_id, behind = end
    return before[len(done) :], answer[: len(answer) - len(behind)], end_id
