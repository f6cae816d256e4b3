"""`osmosis eval submit` and `osmosis train submit`: the preflight, and what they say without a platform."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.controller.preflight import _validated

ROOT = Path(__file__).parents[2]
CONFIG = """
[rollout]
entrypoint = "agent.py"
[dataset]
path = "rows.jsonl"
[llm]
model = "scripted"
script = "model.py:answer"
"""
AGENT = """
from osmosis_ai.rollout import AgentWorkflow, Grader
class Solver(AgentWorkflow):
    async def run(self, ctx): ...
class Exact(Grader):
    async def grade(self, ctx): ...
"""


def write(
    folder: Path, config: str = CONFIG, agent: str = AGENT, rows: str = '{"user_prompt": "hi"}\n'
) -> None:
    (folder / "run.toml").write_text(config)
    (folder / "agent.py").write_text(agent)
    (folder / "rows.jsonl").write_text(rows)
    (folder / "model.py").write_text("def answer(messages, tools, random): ...\n")


def osmosis(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "osmosis_ai", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180)


def findings(folder: Path, kind: str = "eval", *more: str) -> list[tuple[str, str]]:
    done = osmosis(folder, kind, "submit", "run.toml", "--dry-run", "--json", *more)
    said = json.loads(done.stdout)
    assert done.returncode == (2 if said["findings"] else 0), done.stderr
    assert not (folder / ".osmosis").exists()  # nothing was started, nothing is left
    return [(finding["code"], finding["message"]) for finding in said["findings"]]


def test_r30_a_run_that_would_start_has_no_findings(tmp_path: Path):
    write(tmp_path)
    assert findings(tmp_path) == []
    done = osmosis(tmp_path, "eval", "submit", "run.toml", "--dry-run", "--set", "eval.attempts=4")
    assert done.stdout == "nothing is wrong: run run, 1 rows, 4 rollouts\n"


def test_an_entrypoint_in_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, CONFIG.replace('"agent.py"', '"~/code/agent.py"'))
    home = tmp_path / "home"
    (home / "code").mkdir(parents=True)
    (tmp_path / "agent.py").rename(home / "code" / "agent.py")
    monkeypatch.setenv("HOME", str(home))
    assert findings(tmp_path) == []


async def test_a_look_at_the_code_that_is_cancelled_leaves_no_process(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    agent = f"import os\nopen({str(pipe)!r}, 'w').write(str(os.getpid()))\n"
    agent += "import time\ntime.sleep(600)\n"
    (tmp_path / "agent.py").write_text(agent)
    looking = asyncio.ensure_future(_validated([str(tmp_path / "agent.py")]))
    number = int(await asyncio.to_thread(pipe.read_text))
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_r30_everything_that_is_wrong_comes_at_once(tmp_path: Path):
    agent = (
        AGENT.replace("    async def run", "    def run")
        + "class Other(Grader):\n    async def grade(self, c): ...\n"
    )
    config = CONFIG.replace(
        '"scripted"\nscript = "model.py:answer"', '"m"\nbase_url = "http://x/v1"\napi_key_env = "NO_KEY"'
    )
    write(tmp_path, config, agent, '{"prompt": "hi"}\nnot json\n')
    found = findings(tmp_path)
    assert [code for code, _ in found] == [
        "GRADER_NOT_FOUND",
        "WORKFLOW_RUN_NOT_ASYNC",
        "DATASET",
        "DATASET",
        "MODEL",
    ]
    assert "2 graders found" in found[0][1]
    assert found[2][1].startswith(f"{tmp_path / 'rows.jsonl'}:1: no user_prompt".replace(f"{tmp_path}/", ""))
    assert "NO_KEY" in found[4][1]


def test_r30_a_config_that_does_not_hold_does_not_hide_what_it_names(tmp_path: Path):
    write(tmp_path, CONFIG.replace("[llm]", "[llmm]"), "import nothing_like_this\n", "{}\n")
    found = findings(tmp_path)
    assert [code for code, _ in found] == ["CONFIG", "IMPORT_FAILED", "DATASET"]
    assert "Did you mean 'llm'?" in found[0][1]
    assert "No module named 'nothing_like_this'" in found[1][1]


def test_r30_a_config_that_does_not_hold_does_not_hide_that_its_policy_is_none(tmp_path: Path):
    policy = CONFIG.split("[llm]")[0] + '[policy]\npath = "nowhere"\n[train]\nsteps = 0\n'
    write(tmp_path, policy)
    found = findings(tmp_path, "train")
    assert [code for code, _ in found] == ["CONFIG", "MODEL"]
    assert "there is no config.json" in found[1][1]


def test_r30_code_that_ends_the_process_is_a_finding(tmp_path: Path):
    write(tmp_path, agent="import os\nos._exit(3)\n")
    [(code, message)] = findings(tmp_path)
    assert (code, "ended the process with status 3" in message) == ("ENTRYPOINT", True)


def test_r30_training_needs_a_policy_and_a_distribution_that_can_be_scored(tmp_path: Path):
    policy = CONFIG.split("[llm]")[0] + '[policy]\npath = "nowhere"\n[sampling]\ntop_p = 0.9\n'
    write(tmp_path, policy)
    codes = [found for found in findings(tmp_path, "train") if found[0] != "DEPENDENCY"]  # the extra train
    assert [code for code, _ in codes] == ["MODEL", "CONFIG"]
    assert "there is no config.json" in codes[0][1]
    assert "sampling.top_p = 0.9 cannot be trained" in codes[1][1]


def test_r30_overrides_of_the_workflow_are_checked_too(tmp_path: Path):
    loop = (ROOT / "tests" / "seeds" / "seed_003_calculator.py").read_text()
    write(tmp_path, CONFIG + "[workflow]\nmax_turns = 0\n", loop)
    [(code, message)] = findings(tmp_path)
    assert code == "INVALID_CONFIG"
    assert "workflow.max_turns" in message


def test_r30_without_a_platform_nothing_is_submitted_and_the_way_out_is_said(tmp_path: Path):
    write(tmp_path)
    for kind in ("eval", "train"):
        done = osmosis(tmp_path, kind, "submit", "run.toml")
        assert done.returncode == 1
        assert "no platform is configured" in done.stderr
        assert f"`osmosis {kind} run run.toml` runs it on this machine" in done.stderr


def test_a_judge_that_could_not_be_asked_is_a_finding(tmp_path: Path):
    write(tmp_path, CONFIG + '[judge]\nmodel = "scripted"\nscript = "model.py:verdict"\n')
    [(code, message)] = findings(tmp_path)
    assert (code, message.split(": ")[0]) == ("MODEL", "judge.script = 'model.py:verdict'")


def test_a_training_that_would_not_keep_a_budget_is_refused(tmp_path: Path):
    write(tmp_path, CONFIG + "[budget]\nrun_tokens = 1000\n")
    [budget] = [message for code, message in findings(tmp_path, "train") if code == "CONFIG"]
    assert "budget.run_tokens is for an eval; a training takes train.steps steps. Leave it out" in budget
