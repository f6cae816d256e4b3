"""Every trained token was sampled by the engine, under the recorded version, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from e2e_bench import CALCULATOR, TABLES, Bench

from osmosis_ai.config import load_config
from osmosis_ai.controller.checkpoints import Checkpoints
from osmosis_ai.controller.loop import CollectGroups, Training, train
from osmosis_ai.controller.opening import open_run
from osmosis_ai.controller.rollouts import open_rollouts
from osmosis_ai.controller.training import train_settings
from osmosis_ai.engine.base import BackwardStats, LossSpec, SampleRecord
from osmosis_ai.engine.torch import TorchEngine
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Group, PolicyVersion, Rollout, Row, TrainingSample

# The context, what was sampled after it, its log-probabilities and the version of the weights.
Span = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], PolicyVersion | None]


@dataclass
class Step:
    """What went through the two seams of one step."""

    rollouts: list[Rollout]
    calls: list[SampleRecord]  # the engine's own log
    given: list[TrainingSample] = field(default_factory=list)  # to forward_backward


class Watched:
    """The engine and the collection of rollouts, with what passes between them and the loop kept."""

    def __init__(self, engine: TorchEngine, collect: CollectGroups) -> None:
        self.engine = engine
        self._collect = collect
        self.steps: list[Step] = []

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.engine, verb)

    async def collect(
        self, run_id: str, step: int, rows: Sequence[Row], size: int, known: Sequence[Rollout]
    ) -> tuple[list[Group], list[Rollout]]:
        self.engine.log = []
        groups, replaced = await self._collect(run_id, step, rows, size, known)
        assert replaced == []
        self.steps.append(Step([r for group in groups for r in group.rollouts], self.engine.log))
        return groups, replaced

    async def forward_backward(
        self, rows: Sequence[TrainingSample], loss: LossSpec, microbatch_tokens: int
    ) -> BackwardStats:
        self.steps[-1].given = list(rows)
        return await self.engine.forward_backward(rows, loss, microbatch_tokens)


@pytest.mark.parametrize("agent", ["strands", "openai_agents"])
async def test_what_is_learnt_from_is_what_the_engine_logged_token_for_token_at_each_version(
    bench: Bench, agent: str
):
    text = TABLES.replace("rows_per_step = 2", "rows_per_step = 4").replace("steps = 3", "steps = 2")
    config = load_config(bench.write("t.toml", text, entrypoint=str(CALCULATOR / f"{agent}_agent.py")))
    async with (
        open_run(config, "train", Workspace(bench.workspace)) as run,
        open_rollouts(run, training=True, notify=lambda text: None) as parts,
    ):
        assert isinstance(parts.engine, TorchEngine)
        assert parts.info is not None
        watched = Watched(parts.engine, parts.dispatcher.groups)
        training = Training(
            run_id=run.run_id,
            rows=list(parts.rows),
            settings=train_settings(run, parts.info),
            engine=watched,
            collect=watched.collect,
            store=run.store,
            checkpoints=Checkpoints(run.folder, every=1, keep=1),
            version=0,
        )
        await train(training, lambda record: None)

    assert len(watched.steps) == 2
    for version, step in enumerate(watched.steps):  # both steps had a signal
        trained = {row.rollout_id for row in step.given}
        assert trained, f"no group of step {version + 1} had a signal"
        others = [rollout for rollout in step.rollouts if rollout.rollout_id not in trained]
        given = [span for row in step.given for span in spans_of(row, borders_of(row, step.rollouts))]
        logged = Counter(span_of_call(call) for call in step.calls)
        assert any(len(r.turns) > 1 for r in step.rollouts if r.rollout_id in trained)
        assert Counter(given) + turns_of(others) == logged  # each call once: learnt from, or without signal
        assert {span[3] for span in logged} == {version}
        assert {v for row in step.given for v in row.versions} == {-1, version}
        assert sum(row.trained_tokens for row in step.given) == sum(len(span[1]) for span in given)


def span_of_call(call: SampleRecord) -> Span:
    done = call.completion
    return tuple(call.prompt_ids), tuple(done.token_ids), tuple(done.logprobs), done.version


def turns_of(rollouts: list[Rollout]) -> Counter[Span]:
    return Counter(
        (tuple(t.prompt_ids), tuple(t.completion_ids), tuple(t.logprobs), t.policy_version)
        for rollout in rollouts
        for t in rollout.turns
    )


def borders_of(row: TrainingSample, rollouts: list[Rollout]) -> set[int]:
    """Where a turn of the row's rollout begins: two answers may follow each other without context between."""
    [rollout] = [rollout for rollout in rollouts if rollout.rollout_id == row.rollout_id]
    return {len(turn.prompt_ids) for turn in rollout.turns}


def spans_of(row: TrainingSample, borders: set[int]) -> Iterator[Span]:
    """Each trained span with the context before it, as the streams of the row say.

    loss_mask [0, 0, 1, 1, 0, 1] -> tokens 2 and 3 after two tokens of context, token 5 after five.
    """
    mask = [0, *row.loss_mask, 0]
    changes = [t for t, (before, now) in enumerate(pairwise(mask)) if before != now]
    cuts = sorted({*changes, *(b for b in borders if b < len(row.loss_mask) and row.loss_mask[b])})
    for start, end in pairwise(cuts):
        if row.loss_mask[start]:
            [version] = set(row.versions[start:end])
            ids = tuple(row.token_ids)
            yield ids[:start], ids[start:end], tuple(row.logprobs[start:end]), version
