"""`osmosis drift`: where the conversations of a run broke, what that cost, what to change in the agent."""

from __future__ import annotations

import asyncio
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON, WORKSPACE, existing_store, workspace_at
from osmosis_ai.cli.transcript import printable
from osmosis_ai.eval.stored import find_run
from osmosis_ai.gateway.drift import ADVICE, Break, breaks
from osmosis_ai.store.base import RolloutFilter, Store
from osmosis_ai.train.batch import counted_samples, untrainable_tokens
from osmosis_ai.types import Rollout, Status

AT_ONCE = 256  # rollouts in memory


@dataclass(slots=True)
class Examined:
    """What was seen of the rollouts so far."""

    rollouts: int = 0
    conversations: int = 0
    whole: int = 0  # conversations that are one training sample
    calls: int = 0
    sampled_tokens: int = 0
    by_policy: bool = False  # false: an external model answered every call
    breaks: list[Break] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)  # reason -> sampled tokens that cannot be trained

    def look_at(self, rollout: Rollout) -> None:
        found = breaks(rollout.turns)
        samples = {turn.sample_id for turn in rollout.turns}
        self.rollouts += 1
        self.conversations += len(samples)
        self.whole += len(samples - {each.sample_id for each in found})
        self.calls += len(rollout.turns)
        self.sampled_tokens += rollout.sampled_tokens
        self.by_policy |= any(turn.policy_version is not None for turn in rollout.turns)
        self.breaks += found
        if rollout.status is not Status.GRADED:
            self.lost[rollout.status.value] += rollout.sampled_tokens
        else:
            self.lost.update(untrainable_tokens(rollout, counted_samples(rollout)))


@click.command(epilog="Example: osmosis drift hello")
@click.argument("run_id")
@WORKSPACE
@JSON
def drift(run_id: str, workspace: Path, as_json: bool) -> None:
    """Why calls of RUN_ID did not continue their conversation, and what to change in the agent.

    A conversation that only grows is one training sample, and each sampled token stays what it was. A call
    that edits it costs a branch: its prompt is computed again, and answers in it are read again as text.
    """
    display = Display(as_json=as_json)
    examined = asyncio.run(_examine(workspace, run_id))
    display.data({"event": "drift", "run_id": run_id, **_plain(examined)})
    display.out("\n".join([*_head(run_id, examined), *_causes(examined.breaks), *_lost(examined)]))


async def _examine(workspace: Path, run_id: str) -> Examined:
    store = existing_store(workspace_at(workspace))
    try:
        await find_run(store, run_id)
        return await _look(store, run_id)
    finally:
        await store.close()


async def _look(store: Store, run_id: str) -> Examined:
    examined = Examined()
    ids = [rollout.rollout_id for rollout in await store.rollouts(RolloutFilter(run_id), turns=False)]
    for start in range(0, len(ids), AT_ONCE):
        some = RolloutFilter(run_id, rollout_ids=ids[start : start + AT_ONCE])
        for rollout in await store.rollouts(some):
            examined.look_at(rollout)
    return examined


def _plain(examined: Examined) -> dict[str, Any]:
    return {
        "rollouts": examined.rollouts,
        "conversations": examined.conversations,
        "whole": examined.whole,
        "calls": examined.calls,
        "sampled_tokens": examined.sampled_tokens,
        "untrainable_tokens": {reason: tokens for reason, tokens in examined.lost.items() if tokens},
        "breaks": [{**asdict(each), "advice": ADVICE[each.cause]} for each in examined.breaks],
    }


def _head(run_id: str, examined: Examined) -> list[str]:
    reread = sum(each.reread_tokens for each in examined.breaks)
    return [
        f"run {run_id}: {examined.rollouts} rollouts, {examined.conversations} conversations, "
        f"{examined.calls} calls",
        f"  {examined.whole} of {examined.conversations} conversations are one training sample",
        f"  {len(examined.breaks)} calls began a branch; {reread:,} of {examined.sampled_tokens:,} sampled "
        "tokens were read again as text",
    ]


def _causes(found: Sequence[Break]) -> list[str]:
    lines = []
    for cause, count in Counter(each.cause for each in found).most_common():
        those = [each for each in found if each.cause == cause]
        rollouts = len({each.rollout_id for each in those})
        lines.append(
            f"{cause}: {count} calls in {rollouts} rollouts, "
            f"{sum(each.prompt_tokens for each in those):,} prompt tokens computed again, "
            f"{sum(each.reread_tokens for each in those):,} sampled tokens read again"
        )
        first = those[0]
        where = f", {printable(first.where)}" if first.where else ""
        lines.append(f"  first: rollout {first.rollout_id}, call {first.ordinal}{where}")
        lines += textwrap.wrap(ADVICE[cause], 100, initial_indent="  ", subsequent_indent="  ")
    return lines


def _lost(examined: Examined) -> list[str]:
    if not examined.by_policy:
        return ["an external model answered: nothing here is trained; calls of a policy would break alike"]
    lost = [f"{tokens:,} {reason}" for reason, tokens in examined.lost.most_common() if tokens]
    return [f"sampled tokens that no step can train: {', '.join(lost) or 'none'} (docs/metrics.md)"]
