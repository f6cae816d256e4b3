"""Turns to training samples: the tokens that were sampled, once each, with the proof checked again.

The turns of a sample form a tree: a turn continues the tokens of its parent. A path from a root to a
leaf is one training sample; a sampled turn that several paths share is trained in the first of them.

Example: turn 0 prompt [1, 2] sampled [7]; turn 1 continues it: prompt [1, 2, 7, 3] sampled [8]; turn 2
also continues turn 0: prompt [1, 2, 7, 4] sampled [9]. Two training samples:

    [1, 2, 7, 3, 8]  loss_mask [0, 0, 1, 0, 1]
    [1, 2, 7, 4, 9]  loss_mask [0, 0, 0, 0, 1]     7 is trained already
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from osmosis_ai.errors import OsmosisError
from osmosis_ai.types import Rollout, TrainingSample, Turn


class TokenProofError(OsmosisError):
    """A turn does not continue its parent's tokens: something between engine and trainer is broken."""


def training_samples(rollout: Rollout, advantages: dict[str, float]) -> list[TrainingSample]:
    """One training sample per branch of each sample that has an advantage.

    `advantages` maps sample id to the advantage of each of its sampled tokens; samples that are not in it
    are not trained. Raises TokenProofError when a turn's prompt does not start with its parent's tokens.
    """
    by_ordinal = {turn.ordinal: turn for turn in rollout.turns}
    trained: set[int] = set()
    rows = []
    for leaf in _leaves(rollout.turns):
        if leaf.sample_id in advantages:
            path = list(_path(leaf, by_ordinal))
            rows.append(_row(path, trained, advantages[leaf.sample_id]))
            trained.update(turn.ordinal for turn in path)
    return rows


def _leaves(turns: Sequence[Turn]) -> list[Turn]:
    parents = {turn.parent for turn in turns}
    return [turn for turn in turns if turn.ordinal not in parents]


def _path(leaf: Turn, by_ordinal: dict[int, Turn]) -> Iterator[Turn]:
    """From the root to the leaf, each step proven token for token."""
    chain = [leaf]
    while chain[-1].parent is not None:
        child, parent = chain[-1], by_ordinal[chain[-1].parent]
        tokens = parent.prompt_ids + parent.completion_ids
        if child.prompt_ids[: len(tokens)] != tokens:
            raise TokenProofError(
                f"turn {child.ordinal} of rollout {child.rollout_id} says that it continues turn "
                f"{parent.ordinal}, but its prompt does not start with that turn's {len(tokens)} tokens."
            )
        chain.append(parent)
    return reversed(chain)


def _row(path: list[Turn], already_trained: set[int], advantage: float) -> TrainingSample:
    leaf = path[-1]
    token_ids = leaf.prompt_ids + leaf.completion_ids
    length = len(token_ids)
    loss_mask, logprobs, versions = [0] * length, [0.0] * length, [-1] * length
    advantages, temperatures = [0.0] * length, [1.0] * length
    for turn in path:
        if turn.ordinal in already_trained or turn.policy_version is None:
            continue
        start = len(turn.prompt_ids)
        span = slice(start, start + len(turn.completion_ids))
        count = len(turn.completion_ids)
        loss_mask[span] = [1] * count
        logprobs[span] = turn.logprobs
        versions[span] = [turn.policy_version] * count
        advantages[span] = [advantage] * count
        temperatures[span] = [float(turn.sampling.get("temperature", 1.0))] * count
    return TrainingSample(
        token_ids=token_ids,
        loss_mask=loss_mask,
        logprobs=logprobs,
        advantages=advantages,
        versions=versions,
        temperatures=temperatures,
        group_id="",
        rollout_id=leaf.rollout_id,
        sample_id=leaf.sample_id,
    )
