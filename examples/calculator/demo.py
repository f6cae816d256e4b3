"""The whole story in one command: a policy from nothing learns the calculator agent. `make demo` runs this.

Every step is an `osmosis` command that is printed before it runs, so that it can be run by hand. What an
earlier demo has done is kept: the same commands go on where they stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import subprocess
import sys
import time
from pathlib import Path

from osmosis_ai.cli.charts import save_curve_png
from osmosis_ai.cli.transcript import transcript
from osmosis_ai.datasets import load_rows
from osmosis_ai.eval.statistics import mean_reward, paired_difference
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Rollout

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
USAGE_ERROR = 2  # exit code, also for a run that exists and was made with other inputs
HELD_OUT = ["--set", f"dataset.path={HERE / 'data' / 'heldout.jsonl'}"]


def main() -> None:
    options = arguments()
    workspace = workspace_of(options)
    policy = workspace / "policies" / "calculator"
    seed = ["--set", f"run.seed={options.seed}"]
    agent = ["--set", f"rollout.entrypoint={options.agent}_agent.py"]
    train_toml = str(HERE / "train.toml")
    started = time.monotonic()

    chapter("1. Record a careless script doing the task, and make a policy with random weights")
    osmosis(workspace, "eval", "run", str(HERE / "record.toml"), *seed, *agent)
    if not policy.exists():
        osmosis(
            workspace,
            "policy",
            "new",
            str(policy),
            "--from-run",
            "calculator-record",
            "--seed",
            str(options.seed),
        )

    chapter("2. Learn the format from the recording, mistakes included: the starting policy")
    sft = ["--set", f"policy.path={policy}", *seed, *agent]
    osmosis(workspace, "train", "run", str(HERE / "sft.toml"), *sft, quiet=True)

    chapter("3. Evaluate the starting policy on rows it has never seen")
    osmosis(workspace, "eval", "run", train_toml, "--name", "before", *HELD_OUT, *seed, *agent)

    chapter("4. Train it on its own rewards")
    training_started = time.monotonic()
    steps = [] if options.steps is None else ["--set", f"train.steps={options.steps}"]
    osmosis(workspace, "train", "run", train_toml, *seed, *agent, *steps)
    training_seconds = time.monotonic() - training_started

    chapter("5. Evaluate again, on the same rows")
    after = ["--set", "policy.path=run:calculator"]
    osmosis(workspace, "eval", "run", train_toml, "--name", "after", *after, *HELD_OUT, *seed, *agent)

    chapter("What it learnt")
    asyncio.run(report(Workspace(workspace)))
    print(f"training took {training_seconds:.0f} s, everything {time.monotonic() - started:.0f} s")
    print(where_next(workspace))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workspace", type=Path, help="default: .osmosis, apart for other agents and seeds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agent", choices=["strands", "openai_agents"], default="strands")
    parser.add_argument("--steps", type=int, help="GRPO steps, instead of those of train.toml")
    return parser.parse_args()


def workspace_of(options: argparse.Namespace) -> Path:
    """Each agent and seed has a workspace of its own: a run is not continued with other inputs."""
    if options.workspace is not None:
        return options.workspace.absolute()
    usual = (options.agent, options.seed) == ("strands", 0)
    return ROOT / ".osmosis" if usual else ROOT / ".osmosis" / f"{options.agent}-{options.seed}"


def chapter(title: str) -> None:
    print(f"\n{title}\n{'-' * len(title)}", flush=True)


def osmosis(workspace: Path, *arguments: str, quiet: bool = False) -> None:
    """Show a command and run it; `quiet` shows one line in fifty of its progress."""
    command = [*arguments, "--workspace", str(workspace)]
    print(f"$ osmosis {shlex.join(command)}".replace(f"{ROOT}/", ""), flush=True)
    program = [sys.executable, "-m", "osmosis_ai", *command]
    if not quiet:
        status = subprocess.run(program, check=False).returncode
    else:
        with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for number, line in enumerate(process.stderr):
                if not line.startswith("step ") or number % 50 == 0:
                    print(line, end="", flush=True)
            status = process.wait()
    if status == USAGE_ERROR:
        print(
            f"Has the agent or its data changed since the last demo? Then remove {workspace} and start again."
        )
    if status:
        sys.exit(status)


async def report(workspace: Workspace) -> None:
    store = SqliteStore(workspace.database)
    try:
        before = await store.rollouts(RolloutFilter("before"))
        after = await store.rollouts(RolloutFilter("after"))
        steps = await store.steps("calculator")
    finally:
        await store.close()
    print(table(before, after))
    three_rollouts(before, after)
    picture = workspace.run_folder("calculator") / "before-and-after.png"
    points = []
    for step, rollouts in ((0, before), (steps[-1].step, after)):
        estimate = mean_reward(rewards_by_row(rollouts))
        points.append((step, estimate.mean, estimate.low or 0.0, estimate.high or 1.0))
    known = [(r.step, r.metrics["reward_mean"]) for r in steps if r.metrics["reward_mean"] is not None]
    save_curve_png(picture, [s for s, _ in known], [r for _, r in known], eval_points=points)
    print(f"\npicture: {picture}")


def rewards_by_row(rollouts: list[Rollout]) -> dict[int, list[float]]:
    rewards: dict[int, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            rewards.setdefault(rollout.row_index, []).append(rollout.reward)
    return rewards


def table(before: list[Rollout], after: list[Rollout]) -> str:
    """Held-out rewards before and after, with 95 % intervals, over all rows and by the number of steps."""
    first, second = rewards_by_row(before), rewards_by_row(after)
    lines = [f"{'held-out rows':<22}{'before':<24}{'after':<24}difference"]
    both = set(first) & set(second)
    groups = {"all": both}
    for row in load_rows(HERE / "data" / "heldout.jsonl"):
        if row.index in both and row.metadata is not None:
            steps = row.metadata["steps"]
            groups.setdefault(f"{steps} step{'s' if steps > 1 else ''}", set()).add(row.index)
    for title, rows in sorted(groups.items(), key=lambda group: group[0] != "all"):
        a = {row: first[row] for row in rows}
        b = {row: second[row] for row in rows}
        difference = paired_difference(a, b).estimate
        lines.append(
            f"{title + f' ({len(rows)})':<22}{mean_reward(a)!s:<24}{mean_reward(b)!s:<24}{difference}"
        )
    return "\n".join(lines)


def three_rollouts(before: list[Rollout], after: list[Rollout]) -> None:
    """One that failed before, the same row after, and one that still fails."""
    later = {rollout.row_index: rollout for rollout in after}
    learnt = [r for r in before if r.reward == 0.0 and later[r.row_index].reward == 1.0]
    failing = [r for r in after if r.reward == 0.0]
    if learnt:
        print(f"\nFailed before training:\n{transcript(learnt[0])}")
        print(f"\nThe same row after training:\n{transcript(later[learnt[0].row_index])}")
    print(f"\nStill fails:\n{transcript(failing[0])}" if failing else "\nNo row fails any more.")


def where_next(workspace: Path) -> str:
    shown = workspace.relative_to(Path.cwd()) if workspace.is_relative_to(Path.cwd()) else workspace
    return f"""
Where to look next:
  osmosis runs list                             every run so far
  osmosis runs show after --row 0               a conversation in full
  {shown}/runs/calculator/policy          the trained policy, an ordinary Hugging Face folder
  examples/calculator/strands_agent.py          the agent and its grader; change the reward and train again:
  osmosis train run examples/calculator/train.toml --name another"""


if __name__ == "__main__":
    main()
