"""Does the calculator agent learn, seed after seed? Runs the demo per seed; prints the table of docs/LOG.md.

    python bench/learning.py --seeds 0 1 2 3 4 --workspaces seeds

A seed whose workspace is there already is only reported. Failures stay in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from pathlib import Path

from osmosis_ai.eval.statistics import mean_reward
from osmosis_ai.store.base import RolloutFilter, StepRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.store.workspace import Workspace

DEMO = Path(__file__).parent.parent / "examples" / "calculator" / "demo.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--agent", choices=["strands", "openai_agents"], default="strands")
    parser.add_argument("--workspaces", type=Path, default=Path(".osmosis/learning"))
    options = parser.parse_args()
    print("| seed | before | after | RL steps took | steps | generated / trained rollouts | largest audit |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for seed in options.seeds:
        workspace = Workspace((options.workspaces / f"{options.agent}-{seed}").absolute())
        if not workspace.run_folder("after").exists():
            run_demo(workspace, options.agent, seed)
        print(asyncio.run(line(workspace, seed)), flush=True)


def run_demo(workspace: Workspace, agent: str, seed: int) -> None:
    command = [sys.executable, str(DEMO), "--workspace", str(workspace.root), "--agent", agent]
    log = workspace.root.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        subprocess.run([*command, "--seed", str(seed)], stdout=out, stderr=out, check=True)


async def line(workspace: Workspace, seed: int) -> str:
    store = SqliteStore(workspace.database)
    try:
        before, after = [await held_out(store, run) for run in ("before", "after")]
        steps = await store.steps("calculator")
    finally:
        await store.close()
    took = sum(step.metrics["seconds"]["step"] for step in steps)
    audit = max(step.metrics["audit"]["max_difference"] for step in steps)
    counts = f"{total(steps, 'generated'):,} / {total(steps, 'trained'):,}"
    return f"| {seed} | {before} | {after} | {took:.0f} s | {len(steps)} | {counts} | {audit:.1e} |"


async def held_out(store: SqliteStore, run: str) -> str:
    rewards: dict[int, list[float]] = {}
    for rollout in await store.rollouts(RolloutFilter(run), turns=False):
        if rollout.reward is not None:
            rewards.setdefault(rollout.row_index, []).append(rollout.reward)
    return str(mean_reward(rewards))


def total(steps: list[StepRecord], stage: str) -> int:
    return sum(step.metrics["funnel"]["stages"][stage]["rollouts"] for step in steps)


if __name__ == "__main__":
    main()
