"""Row in, new weights out: both frameworks, through every layer, as a user would run it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from e2e_bench import CALCULATOR, TABLES, Bench


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("agent", ["strands", "openai_agents"])
def test_an_agent_is_trained_on_its_own_rewards(bench: Bench, agent: str):
    bench.write("train.toml", TABLES, entrypoint=str(CALCULATOR / f"{agent}_agent.py"))
    lines = bench.lines("train", "run", "train.toml")
    steps, done = lines[:-1], lines[-1]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert any(step["groups_with_signal"] for step in steps)
    for step in steps:
        funnel = step["funnel"]
        assert funnel["stages"]["generated"]["rollouts"] == 8
        assert step["audit"]["tokens"] > 0
        assert step["audit"]["max_difference"] <= 2e-6
        for unit in ("rollouts", "tokens"):
            lost = sum(count[unit] for count in funnel["losses"].values())
            assert funnel["stages"]["generated"][unit] == funnel["stages"]["trained"][unit] + lost
    learnt = Path(done["policy"])
    assert weights(learnt) != weights(bench.workspace / "runs" / "sft" / "policy")
    shown = bench.lines("runs", "show", "train", "--row", "0")
    assert any(len(rollout["turns"]) > 1 for rollout in shown)  # tools were called
