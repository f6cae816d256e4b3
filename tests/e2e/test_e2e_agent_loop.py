"""The agent loop of seed document 003, word for word, through the same controller as everything else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_bench import CALCULATOR, RECORD, TABLES, Bench

SEED = str(Path(__file__).parents[1] / "seeds" / "seed_003_calculator.py")
FOUR_TURNS = "[workflow]\nmax_turns = 4\n"


@pytest.fixture
def url() -> Iterator[str]:
    """`osmosis serve` with the seed's agent loop, in a process of its own."""
    command = [sys.executable, "-m", "osmosis_ai", "serve", SEED, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
        server.terminate()


def test_r01_r10_the_calculator_of_seed_003_is_evaluated(tmp_path: Path):
    bench = Bench(tmp_path)
    rows = (CALCULATOR / "data" / "train.jsonl").read_text().splitlines()[:4]
    (tmp_path / "four.jsonl").write_text("\n".join(rows) + "\n")
    bench.write("eval.toml", RECORD + FOUR_TURNS, entrypoint=SEED)
    lines = bench.lines("eval", "run", "eval.toml")
    rollouts, report = lines[:-1], lines[-1]
    assert (report["graded"], report["failures"]) == (32, {})
    assert {rollout["reward"] for rollout in rollouts} == {0.0, 1.0}
    shown = bench.lines("runs", "show", "record", "--row", "0")
    assert {sample for rollout in shown for sample in rollout["samples"]} == {"calculator"}
    for rollout in shown:
        sample = rollout["samples"]["calculator"]
        assert sample["metrics"]["num_llm_calls"] == len(rollout["turns"])
        assert {tool["function"]["name"] for tool in rollout["turns"][0]["tools"]} == {"add", "multiply"}


def test_r32_the_calculator_of_seed_003_is_trained_on_its_own_rewards(bench: Bench):
    bench.write("train.toml", TABLES + FOUR_TURNS, entrypoint=SEED)
    lines = bench.lines("train", "run", "train.toml")
    steps = lines[:-1]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert any(step["groups_with_signal"] for step in steps)
    for step in steps:
        assert step["funnel"]["stages"]["generated"]["rollouts"] == 8
        assert step["audit"]["tokens"] > 0
        assert step["audit"]["max_difference"] <= 2e-6
    shown = bench.lines("runs", "show", "train", "--row", "0")
    turns = [turn for rollout in shown for turn in rollout["turns"]]
    assert any(turn["parent"] is not None for turn in turns)  # a tool result continued the sampled tokens
    assert all(turn["completion_ids"] and turn["sample_id"] == "calculator" for turn in turns)


def test_r32_the_calculator_of_seed_003_is_trained_on_a_server_of_its_own(bench: Bench, url: str):
    remote = TABLES.replace('entrypoint = "{entrypoint}"', 'url = "{entrypoint}"')
    bench.write("train.toml", remote + FOUR_TURNS, entrypoint=url)
    steps = bench.lines("train", "run", "train.toml")[:-1]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert any(step["groups_with_signal"] for step in steps)
    for step in steps:
        assert step["funnel"]["stages"]["generated"]["rollouts"] == 8
        assert step["audit"]["max_difference"] <= 2e-6
    shown = bench.lines("runs", "show", "train", "--row", "0")
    turns = [turn for rollout in shown for turn in rollout["turns"]]
    assert any(turn["parent"] is not None for turn in turns)
    assert all(turn["completion_ids"] and turn["sample_id"] == "calculator" for turn in turns)
