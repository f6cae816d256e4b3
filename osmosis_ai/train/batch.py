"""Groups to one batch: advantages spread over sampled tokens, a denominator, and the funnel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from osmosis_ai.train.advantages import Advantage
from osmosis_ai.train.funnel import Funnel
from osmosis_ai.train.samples import training_samples
from osmosis_ai.types import Group, Rollout, Sample, Status, TrainingSample

Normalisation = Literal["token_mean", "sample_mean", "rollout_mean"]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step trains on, and what became of everything that was generated for it."""

    samples: list[TrainingSample]
    denominator: float
    funnel: Funnel
    rewards: list[float]  # of all graded rollouts
    groups: int
    groups_with_signal: int
    branches: dict[str, int]  # reason -> calls that do not continue the latest turn of their sample


def build_batch(
    groups: Sequence[Group],
    discarded: Sequence[Rollout],
    advantage: Advantage,
    *,
    normalisation: Normalisation = "token_mean",
    max_sample_tokens: int = 1 << 30,
) -> Batch:
    """Turn the groups of one step into training samples.

    `discarded` are attempts that another attempt replaced: they are in the funnel, in no group. Samples
    with the same id are compared within a group, so that two agents of one rollout have a baseline each.
    """
    funnel, rows, with_signal = Funnel(), [], 0
    for rollout in discarded:
        funnel.generated.add(1, rollout.sampled_tokens)
        funnel.lose(rollout.status.value, 1, rollout.sampled_tokens)
    for group in groups:
        group_rows = _group_rows(group, advantage, funnel, max_sample_tokens)
        with_signal += bool(group_rows)
        rows += group_rows
    if not funnel.adds_up():
        raise AssertionError(f"the funnel does not add up: {funnel.as_dict()}")
    weighted, denominator = NORMALISATIONS[normalisation](rows)
    rewards = [r.reward for g in groups for r in g.rollouts if r.reward is not None]
    branches = sum((r.branches for group in groups for r in group.rollouts), Counter[str]())
    return Batch(weighted, denominator, funnel, rewards, len(groups), with_signal, dict(branches))


def _group_rows(
    group: Group, advantage: Advantage, funnel: Funnel, max_sample_tokens: int
) -> list[TrainingSample]:
    graded = [r for r in group.rollouts if r.status is Status.GRADED]
    for rollout in group.rollouts:
        funnel.generated.add(1, rollout.sampled_tokens)
        if rollout.status is not Status.GRADED:
            funnel.lose(rollout.status.value, 1, rollout.sampled_tokens)
    advantages = _sample_advantages(graded, advantage)
    if not any(value for per_sample in advantages for value in per_sample.values()):
        for rollout, per_sample in zip(graded, advantages, strict=True):
            if not per_sample:  # every sample removed or frozen: lost for that, whatever the rewards
                _rollout_rows(rollout, per_sample, funnel, max_sample_tokens, group.group_id)
                continue
            funnel.lose("no_signal" if len(graded) > 1 else "lone_survivor", 1, rollout.sampled_tokens)
        return []
    rows = []
    for rollout, per_sample in zip(graded, advantages, strict=True):
        rows += _rollout_rows(rollout, per_sample, funnel, max_sample_tokens, group.group_id)
    return rows


def _counts(sample: Sample) -> bool:
    return not sample.removed and not sample.frozen and sample.reward is not None


def _sample_advantages(graded: Sequence[Rollout], advantage: Advantage) -> list[dict[str, float]]:
    """Per rollout: sample id -> advantage among the samples of that id in the group."""
    result: list[dict[str, float]] = [{} for _ in graded]
    for sample_id in sorted({s.sample_id for r in graded for s in r.samples.values() if _counts(s)}):
        having = [i for i, r in enumerate(graded) if sample_id in r.samples and _counts(r.samples[sample_id])]
        rewards = [graded[i].samples[sample_id].reward or 0.0 for i in having]
        for i, value in zip(having, advantage(rewards), strict=True):
            result[i][sample_id] = value
    return result


def _rollout_rows(
    rollout: Rollout, advantages: dict[str, float], funnel: Funnel, max_sample_tokens: int, group_id: str
) -> list[TrainingSample]:
    """The rows of one rollout; its tokens that do not get into them are lost with a reason."""
    lost = {**untrainable_tokens(rollout, advantages), "too_long": 0}
    rows = []
    for row in training_samples(rollout, advantages):
        if len(row.token_ids) > max_sample_tokens:
            lost["too_long"] += row.trained_tokens
        else:
            rows.append(replace(row, group_id=group_id))
    trained = sum(row.trained_tokens for row in rows)
    main_reason = max(lost, key=lambda reason: lost[reason])
    for reason, tokens in lost.items():
        if tokens or (not trained and reason == main_reason):
            funnel.lose(reason, int(not trained and reason == main_reason), tokens)
    funnel.trained.add(int(trained > 0), trained)
    return rows if trained else []


def untrainable_tokens(rollout: Rollout, samples: Container[str]) -> dict[str, int]:
    """Sampled tokens of a graded rollout that no step trains, by reason; `samples` are those that count."""
    lost = {"sample_removed": 0, "frozen": 0, "not_in_a_sample": 0, "other_model": 0}
    for turn in rollout.turns:
        if turn.policy_version is None:
            lost["other_model"] += turn.completion_tokens
        elif turn.sample_id not in rollout.samples:
            lost["not_in_a_sample"] += turn.completion_tokens
        elif rollout.samples[turn.sample_id].frozen:
            lost["frozen"] += turn.completion_tokens
        elif turn.sample_id not in samples:
            lost["sample_removed"] += turn.completion_tokens
    return lost


def counted_samples(rollout: Rollout) -> set[str]:
    """The ids of the samples that are trained when their group has a signal."""
    return {sample.sample_id for sample in rollout.samples.values() if _counts(sample)}


def _token_mean(rows: list[TrainingSample]) -> tuple[list[TrainingSample], float]:
    """Every trained token counts the same."""
    return rows, float(max(1, sum(row.trained_tokens for row in rows)))


def _sample_mean(rows: list[TrainingSample]) -> tuple[list[TrainingSample], float]:
    """Every training sample counts the same, however long."""
    weighted = [replace(row, weight=1.0 / max(1, row.trained_tokens)) for row in rows]
    return weighted, float(max(1, len(rows)))


def _rollout_mean(rows: list[TrainingSample]) -> tuple[list[TrainingSample], float]:
    """Every rollout counts the same, however many samples and branches it has."""
    tokens: dict[str, int] = {}
    for row in rows:
        tokens[row.rollout_id] = tokens.get(row.rollout_id, 0) + row.trained_tokens
    weighted = [replace(row, weight=1.0 / max(1, tokens[row.rollout_id])) for row in rows]
    return weighted, float(max(1, len(tokens)))


NORMALISATIONS: Mapping[str, Callable[[list[TrainingSample]], tuple[list[TrainingSample], float]]] = {
    "token_mean": _token_mean,
    "sample_mean": _sample_mean,
    "rollout_mean": _rollout_mean,
}
