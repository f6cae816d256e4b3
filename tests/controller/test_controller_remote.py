"""Rollout servers in a process of their own, started by `osmosis serve`: seed 003 above all."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from controller_bench import AGENTS, run_eval

from osmosis_ai.cli.transcript import transcript
from osmosis_ai.config import Config, load_config
from osmosis_ai.controller import remote
from osmosis_ai.errors import ConfigError, InfrastructureError, UsageError
from osmosis_ai.eval.run import summarise
from osmosis_ai.types import Rollout, Status

SEED = Path(__file__).parents[1] / "seeds" / "seed_003_calculator.py"
CALCULATOR = Path(__file__).parents[2] / "examples" / "calculator"
LOOPS = Path(__file__).with_name("remote_loops.py")
EVAL = """
[run]
name = "remote"
[rollout]
url = "{url}"
[dataset]
path = "rows.jsonl"
[llm]
model = "scripted"
script = "{script}"
"""


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[str]:
    with started(*arguments, **environment) as (_, url):
        yield url


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`osmosis serve`, and the URL that it says."""
    command = [sys.executable, "-m", "osmosis_ai", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        try:
            yield server, line.split()[-1]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def loops() -> Iterator[str]:
    """The agent loop of `remote_loops.py`."""
    with serving(str(LOOPS), OSMOSIS_ROLLOUT_CLIENT_RETRY_BASE_DELAY="0.1") as url:
        yield url


def configure(folder: Path, words: list[str], url: str, more: str = "", **settings: str) -> Config:
    rows = [{"user_prompt": word, "ground_truth": "12"} for word in words]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = EVAL.format(url=url, script=settings.get("script", f"{LOOPS}:answer"))
    (folder / "run.toml").write_text(text.replace("[dataset]", f"{more}\n[dataset]"))
    return load_config(folder / "run.toml")


async def rollouts_of(folder: Path, words: list[str], url: str, more: str = "") -> list[Rollout]:
    return await run_eval(configure(folder, words, url, more), folder)


@pytest.mark.parametrize("gateways", [1, 2])
async def test_r28_r32_the_calculator_of_seed_003_is_evaluated_on_a_server_of_its_own(
    tmp_path: Path, gateways: int
):
    rows = (CALCULATOR / "data" / "train.jsonl").read_text().splitlines()[:4]
    with serving(str(SEED)) as url:
        script = f"{CALCULATOR / 'demonstrations.py'}:answer"
        config = configure(tmp_path, ["x"], url, f"gateway_workers = {gateways}", script=script)
        (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
        rollouts = await run_eval(config, tmp_path)
    assert [rollout.status for rollout in rollouts] == [Status.GRADED] * 4
    for rollout in rollouts:
        [(name, sample)] = rollout.samples.items()
        assert name == "calculator"
        assert sample.reward in (0.0, 1.0)
        assert sample.metrics["num_llm_calls"] == len(rollout.turns)
        assert {turn.sample_id for turn in rollout.turns} == {"calculator"}
        assert {tool["function"]["name"] for tool in rollout.turns[0].tools} == {"add", "multiply"}
        assert sample.messages[-1]["content"] == rollout.turns[-1].response["content"]


async def test_r30_a_workflows_server_that_runs_elsewhere_is_used_like_our_own(tmp_path: Path, monkeypatch):
    with serving(str(AGENTS), "--api-key", "sesame") as url:
        monkeypatch.setenv("REMOTE_KEY", "sesame")
        config = configure(tmp_path, ["ok", "raises"], url, 'api_key_env = "REMOTE_KEY"')
        (tmp_path / "rows.jsonl").write_text(
            '{"user_prompt": "ok", "ground_truth": "right"}\n{"user_prompt": "raises", "ground_truth": "x"}\n'
        )
        good, bad = await run_eval(config, tmp_path)
    assert (good.status, good.reward) == (Status.GRADED, 1.0)
    assert bad.status is Status.WORKFLOW_ERROR
    assert "no soup today" in bad.reason


async def test_what_the_loop_says_of_its_end_is_the_rollouts_result(tmp_path: Path, loops: str):
    words = ["right", "wrong", "errs", "raises", "silent", "nan", "none"]
    rollouts = await rollouts_of(tmp_path, words, loops)
    got = {word: (r.status, r.reward, r.reason) for word, r in zip(words, rollouts, strict=True)}
    assert got["right"] == (Status.GRADED, 1.0, "")
    assert got["wrong"] == (Status.GRADED, 0.0, "")
    assert got["errs"] == (Status.WORKFLOW_ERROR, None, "I give up")
    assert got["raises"][0] is Status.WORKFLOW_ERROR
    assert "no soup today" in got["raises"][2]
    assert got["silent"][0] is Status.NO_TURNS
    assert got["nan"][0] is Status.WORKFLOW_ERROR  # its own server refuses it
    assert got["none"][0] is Status.GRADER_ERROR
    assert 'rollout.grader_entrypoint = "reward.py"' in got["none"][2]


async def test_where_the_loop_gives_no_reward_the_function_of_the_toml_does(tmp_path: Path, loops: str):
    (tmp_path / "reward.py").write_text(
        "from osmosis_ai import osmosis_reward\n"
        "@osmosis_reward\n"
        "def exact(solution_str: str, ground_truth: str, extra_info: dict = None, **kwargs) -> float:\n"
        "    return 0.25 if ground_truth in solution_str else 0.0\n"
    )
    rollouts = await rollouts_of(tmp_path, ["none", "right"], loops, 'grader_entrypoint = "reward.py"')
    assert [rollout.reward for rollout in rollouts] == [0.25, 1.0]
    assert rollouts[0].samples["remote"].metrics["num_llm_calls"] == 1


JUDGE = f"""
[judge]
model = "scripted"
script = "{AGENTS}:verdict"
"""


async def test_a_function_of_the_toml_asks_the_judge_of_the_toml(tmp_path: Path, loops: str):
    (tmp_path / "reward.py").write_text(
        "from osmosis_ai import evaluate_rubric, osmosis_rubric\n"
        "@osmosis_rubric\n"
        "async def polite(solution_str: str, ground_truth: str | None, extra_info: dict, **more) -> float:\n"
        "    return (await evaluate_rubric('Ok?', solution_str, judge=more['judge'])).score\n"
    )
    more = 'grader_entrypoint = "reward.py"' + JUDGE
    [rollout] = await rollouts_of(tmp_path, ["none"], loops, more)
    assert (rollout.status, rollout.reward in (0.25, 0.75)) == (Status.GRADED, True), rollout.reason
    assert len(rollout.turns) == 1


async def test_a_judge_for_a_loop_that_is_rewarded_where_it_runs_is_an_error(tmp_path: Path, loops: str):
    with pytest.raises(
        UsageError, match=r"\[judge\] is for a grader, and the agent loop at .* is rewarded where"
    ):
        await rollouts_of(tmp_path, ["right"], loops, JUDGE)


async def test_where_the_loop_gives_no_reward_a_grader_that_raises_fails_its_rollout(
    tmp_path: Path, loops: str
):
    (tmp_path / "reward.py").write_text(
        "from osmosis_ai.rollout import Grader\n"
        "class Strict(Grader):\n"
        "    async def grade(self, ctx):\n"
        "        raise ValueError('the dog ate it')\n"
    )
    [rollout] = await rollouts_of(tmp_path, ["none"], loops, 'grader_entrypoint = "reward.py"')
    assert rollout.status is Status.GRADER_ERROR
    assert "the dog ate it" in rollout.reason


async def test_an_edited_history_is_a_branch_with_its_reason_and_not_trained_as_one(
    tmp_path: Path, loops: str
):
    [rollout] = await rollouts_of(tmp_path, ["edits"], loops)
    first, second = rollout.turns
    assert (first.parent, first.branch_reason) == (None, None)
    assert (second.parent, second.branch_reason) == (None, "edited_history")
    assert summarise([rollout], 1, 1.0).branches == {"edited_history": 1}
    shown = [line for line in transcript(rollout).splitlines() if line.startswith("  sample")]
    assert shown == ["  sample remote  reward 1", "  sample remote  reward 1  branch: edited_history"]


async def test_sampling_and_the_workflow_table_are_what_the_request_says(tmp_path: Path, loops: str):
    config = configure(tmp_path, ["tells"], loops)
    text = (tmp_path / "run.toml").read_text()
    text += "[sampling]\ntemperature = 0.5\n[workflow]\nmax_turns = 3\ncompletion_params = { seed = 7 }\n"
    (tmp_path / "run.toml").write_text(text)
    [rollout] = await run_eval(load_config(config.source), tmp_path)
    told = json.loads(rollout.samples["remote"].messages[-1]["content"])
    assert told["max_turns"] == 3
    assert told["max_tokens_total"] == 8192
    assert told["completion_params"] == {"temperature": 0.5, "top_p": 1.0, "max_tokens": 256, "seed": 7}
    assert told["metadata"] == {"row_index": 0, "ground_truth": "12"}


async def test_a_loop_that_never_ends_is_a_timeout_and_its_key_is_dead(tmp_path: Path, loops: str):
    [rollout] = await rollouts_of(tmp_path, ["hangs"], loops, "agent_timeout_seconds = 0.5")
    async with aiohttp.ClientSession() as session:
        assert (await (await session.get(f"{loops}/health")).json())["active_rollouts"] == 0  # it was stopped
    assert rollout.status is Status.WORKFLOW_TIMEOUT
    assert "no result within rollout.agent_timeout_seconds = 0.5 s" in rollout.reason
    assert "1 LLM calls that were answered" in rollout.reason


async def test_a_second_and_a_late_result_are_acknowledged_and_change_nothing(tmp_path: Path, loops: str):
    [rollout] = await rollouts_of(tmp_path, ["twice"], loops)
    assert (rollout.status, rollout.reward) == (Status.GRADED, 0.0)


def test_a_url_and_an_entrypoint_exclude_each_other(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"rollout\.entrypoint and rollout\.url are both given; keep one"):
        configure(tmp_path, ["x"], "http://127.0.0.1:1", 'entrypoint = "a.py"')
    with pytest.raises(ConfigError, match=r"rollout\.workflow is for rollout\.entrypoint only"):
        configure(tmp_path, ["x"], "http://127.0.0.1:1", 'workflow = "A"')


async def test_a_server_that_is_not_there_is_named_before_anything_runs(tmp_path: Path):
    with pytest.raises(InfrastructureError, match=r"there is no rollout server at http://127\.0\.0\.1:1"):
        await rollouts_of(tmp_path, ["right"], "http://127.0.0.1:1")


async def test_a_wrong_key_is_learnt_before_anything_runs(tmp_path: Path):
    with serving(str(LOOPS), "--api-key", "sesame") as url:
        with pytest.raises(UsageError, match=r"needs a key: rollout\.api_key_env names its variable"):
            await rollouts_of(tmp_path, ["right"], url)


async def test_a_server_elsewhere_needs_a_gateway_that_it_can_reach(tmp_path: Path):
    with pytest.raises(UsageError, match=r"set rollout\.gateway_host"):
        await rollouts_of(tmp_path, ["right"], "http://192.0.2.7:9000")


async def test_a_server_that_goes_away_fails_the_attempt_and_not_the_workflow(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(remote, "PULSE_SECONDS", 0.05)
    monkeypatch.setattr(remote, "RETURN_SECONDS", 0.2)
    with started(str(LOOPS)) as (server, url):
        running = asyncio.create_task(rollouts_of(tmp_path, ["hangs"], url, "retries = 1"))
        async with aiohttp.ClientSession() as session:
            while not (await (await session.get(f"{url}/health")).json())["active_rollouts"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        server.kill()
        [rollout] = await running
    assert rollout.status is Status.INFRASTRUCTURE
    assert rollout.attempt == 1
    assert f"the rollout server at {url} has not answered" in rollout.reason
