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

    @property
    def end_text(self) -> str:
        """Text of the token that ends an assistant turn."""
        ...

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, add_generation_prompt: bool
    ) -> str: ...

    def encode(self, text: str) -> list[int]: ...


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
    return sample is not None and not sample.removed


def _conversation(
    leaf: Turn, by_ordinal: dict[int, Turn], trained: set[int], renderer: ConversationRenderer
) -> TrainingSample:
    path: list[Turn] = [leaf]
    while path[0].parent is not None:
        path.insert(0, by_ordinal[path[0].parent])
    messages = [*leaf.messages, leaf.response]
    token_ids: list[int] = []
    loss_mask: list[int] = []
    done = ""  # text that has become tokens
    for turn in path:
        context, answer = _pieces(messages, len(turn.messages), leaf.tools, done, renderer)
        for text, mask in ((context, 0), (answer, int(turn.ordinal not in trained))):
            ids = renderer.encode(text)
            token_ids += ids
            loss_mask += [mask] * len(ids)
        trained.add(turn.ordinal)
        done += context + answer
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
) -> tuple[str, str]:
    """The context since `done`, and the answer (message `index`) up to its end token."""
    before = renderer.render(messages[:index], tools, add_generation_prompt=True)
    after = renderer.render(messages[: index + 1], tools, add_generation_prompt=False)
    if not before.startswith(done) or not after.startswith(before):
        raise UsageError(
            "the policy's chat template is not append-only: rendering one more message changed the text "
            f"of the earlier ones (at message {index}); such a policy cannot learn from conversations."
        )
    answer = after[len(before) :]
    cut = answer.rfind(renderer.end_text)
    if cut < 0:
        raise UsageError(f"the chat template does not end assistant turns with {renderer.end_text!r}")
    return before[len(done) :], answer[: cut + len(renderer.end_text)]
