"""A run in this process, with the agents of `lean_agents.py` in a child process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osmosis_ai.config import Config, load_config
from osmosis_ai.controller.opening import open_run
from osmosis_ai.controller.rollouts import open_rollouts
from osmosis_ai.eval.run import evaluate, read_earlier
from osmosis_ai.eval.stored import counted
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Rollout

AGENTS = Path(__file__).with_name("lean_agents.py")
EVAL = f"""
[run]
name = "bad"
[rollout]
entrypoint = "{AGENTS}"
[dataset]
path = "rows.jsonl"
[llm]
model = "scripted"
script = "{AGENTS}:answer"
"""

Does = tuple[str, str]  # what the workflow does and what the grader does, by their names in `lean_agents.py`


def configure(folder: Path, does: Sequence[Does], text: str = EVAL, **settings: Any) -> Config:
    """`settings` are written TABLE__KEY; each row has a file of its own for what it tells the test."""
    rows = [
        {"user_prompt": workflow, "ground_truth": grader, "metadata": {"file": str(folder / f"told-{i}")}}
        for i, (workflow, grader) in enumerate(does)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.toml").write_text(text)
    return load_config(folder / "run.toml", {key.replace("__", "."): v for key, v in settings.items()})


async def run_eval(config: Config, folder: Path) -> list[Rollout]:
    """The rollout that counts of each row, in order, as the store has it."""
    async with open_run(config, "eval", Workspace(folder / "ws")) as run:
        earlier = await read_earlier(run.store, run.run_id)
        async with open_rollouts(run, training=False, notify=lambda text: None) as parts:
            async for _ in evaluate(parts.dispatcher, run.run_id, parts.rows, config.eval.attempts, earlier):
                pass
        await run.finish()
        return counted(await run.store.rollouts(RolloutFilter(run.run_id)))
