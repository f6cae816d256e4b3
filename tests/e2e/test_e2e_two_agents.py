"""Two agents of two frameworks in one rollout, taught, trained, and one of them frozen."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from e2e_bench import CALCULATOR, SFT, TABLES, Bench, teach

TWO_AGENTS = CALCULATOR.parent / "two_agents"
AGENTS = {"entrypoint": str(TWO_AGENTS / "workflow.py"), "script": str(TWO_AGENTS / "scripted.py")}


@pytest.fixture(scope="module")
def two_agents(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A very small policy that has learnt both agents' format by heart, from two rows."""
    bench = Bench(tmp_path_factory.mktemp("two_agents"))
    teach(bench, rows=2, sft=SFT.replace("steps = 90", "steps = 70"), **AGENTS)
    bench.write("train.toml", TABLES, **AGENTS)
    return bench


def test_each_agent_is_a_sample_with_its_own_reward_and_both_are_trained(two_agents: Bench):
    *steps, _ = two_agents.lines("train", "run", "train.toml")
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert sum(step["funnel"]["stages"]["trained"]["tokens"] for step in steps) > 0
    assert not any("frozen" in step["funnel"]["losses"] for step in steps)
    rollouts = two_agents.lines("runs", "show", "train", "--row", "0")
    graded = [rollout for rollout in rollouts if rollout["status"] == "graded"]
    assert graded
    for rollout in graded:
        assert set(rollout["samples"]) == {"solver", "checker"}
        assert {turn["sample_id"] for turn in rollout["turns"]} == {"solver", "checker"}
        assert all(sample["reward"] in (0.0, 1.0) for sample in rollout["samples"].values())


def test_a_frozen_agent_is_graded_and_none_of_its_tokens_is_trained(two_agents: Bench):
    *steps, _ = two_agents.lines(
        "train", "run", "train.toml", "--name", "frozen", "--set", "workflow.frozen=checker"
    )
    rollouts = [r for row in "01" for r in two_agents.lines("runs", "show", "frozen", "--row", row)]
    checked = {
        step: sum(
            turn["completion_tokens"]
            for rollout in rollouts
            if rollout["step"] == step
            for turn in rollout["turns"]
            if turn["sample_id"] == "checker"
        )
        for step in (1, 2, 3)
    }
    for step in steps:
        stages, losses = step["funnel"]["stages"], step["funnel"]["losses"]
        frozen = losses.get("frozen", {"tokens": 0})["tokens"]
        assert frozen <= checked[step["step"]]
        assert (
            stages["trained"]["tokens"] + sum(loss["tokens"] for loss in losses.values())
            == (stages["generated"]["tokens"])
        )
    assert any("frozen" in step["funnel"]["losses"] for step in steps)


@pytest.mark.parametrize("name", ["record", "sft", "train"])
def test_the_configurations_of_the_example_hold(name: str):
    from osmosis_ai.config import load_config

    path = TWO_AGENTS / f"{name}.toml"
    config = load_config(path)
    assert config.run.name.startswith("two-agents")
    assert config.resolve(config.dataset.path).is_file()
    assert Path(path.parent / tomllib.loads(path.read_text())["rollout"]["entrypoint"]).is_file()
