"""Opening a run: inputs that do not hold are said before anything is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from controller_bench import AGENTS, configure, run_eval

from osmosis_ai.controller.opening import open_run
from osmosis_ai.errors import DatasetError, EntrypointError, InfrastructureError, OsmosisError, UsageError
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Status

IMPORTS = "from osmosis_ai.rollout import AgentWorkflow, Grader\n"
WORKFLOW = "class {name}(AgentWorkflow):\n    async def run(self, ctx): ...\n"
GRADER = "class G(Grader):\n    async def grade(self, ctx): ...\n"
TWO = IMPORTS + WORKFLOW.format(name="A") + WORKFLOW.format(name="B") + GRADER

BAD_ENTRYPOINTS = {
    "none": (GRADER.join([IMPORTS, ""]), EntrypointError, "no AgentWorkflow found in '{path}': define one"),
    "two": (TWO, EntrypointError, "2 workflows found in '{path}': A (two), B (two). Keep one, or choose:"),
    "no_grader": (IMPORTS + WORKFLOW.format(name="A"), EntrypointError, "no Grader found in '{path}'"),
    "syntax": ("def (:\n", EntrypointError, "SyntaxError: invalid syntax"),
    "leaves": (
        "import sys\nsys.exit(3)\n",
        EntrypointError,
        "failed: SystemExit: 3\n  {path}:2: sys.exit(3)",
    ),
    "needs": ("import nonesuch_module\n", EntrypointError, "No module named 'nonesuch_module'\n  {path}:1"),
    "dies": ("import os\nprint('last words')\nos._exit(9)\n", InfrastructureError, "    last words"),
}


async def stored_runs(folder: Path) -> list[str]:
    store = SqliteStore(Workspace(folder / "ws").database)
    try:
        return [summary.run.run_id for summary in await store.list_runs()]
    finally:
        await store.close()


async def refusal(folder: Path, kind: type[OsmosisError] = UsageError, **settings: Any) -> str:
    """Why the eval does not begin; it leaves no run behind."""
    with pytest.raises(kind) as caught:
        await run_eval(configure(folder, [("ok", "right")], **settings), folder)
    assert await stored_runs(folder) == []
    return str(caught.value)


@pytest.mark.parametrize("name", BAD_ENTRYPOINTS)
async def test_an_entrypoint_that_cannot_be_used_says_why_and_leaves_no_run(tmp_path: Path, name: str):
    code, kind, expected = BAD_ENTRYPOINTS[name]
    path = tmp_path / f"{name}.py"
    path.write_text(code)
    message = await refusal(tmp_path, kind, rollout__entrypoint=path.name)
    assert expected.format(path=path) in message


async def test_the_mended_entrypoint_runs_under_the_same_name(tmp_path: Path):
    (tmp_path / "agent.py").write_text(TWO)
    config = configure(tmp_path, [("ok", "right")], rollout__entrypoint="agent.py")
    with pytest.raises(EntrypointError):
        await run_eval(config, tmp_path)
    (tmp_path / "agent.py").write_text(AGENTS.read_text())
    [rollout] = await run_eval(config, tmp_path)
    assert (rollout.run_id, rollout.reward) == ("bad", 1.0)


async def test_an_entrypoint_that_is_not_there_names_its_neighbours(tmp_path: Path):
    (tmp_path / "agent.py").write_text("")
    message = await refusal(tmp_path, EntrypointError, rollout__entrypoint="agnet.py")
    assert message.endswith(
        "there is no file {}. Python files beside it: agent.py.".format(tmp_path / "agnet.py")
    )
    message = await refusal(tmp_path, EntrypointError, rollout__entrypoint="no.such.module")
    assert message == "rollout.entrypoint = 'no.such.module': No module named 'no'"


async def test_a_dataset_names_every_bad_line(tmp_path: Path):
    lines = [
        b'{"user_prompt": "ok", "ground_truth": "right"}',
        b"not json",
        b'{"prompt": "ok"}',
        b'{"user_prompt": "\xff"}',
        b'{"user_prompt": " "}',
    ]
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join(lines))
    message = await refusal(tmp_path, DatasetError, dataset__path="bad.jsonl")
    found = message.replace(f"{tmp_path}/", "").splitlines()
    assert [line.split(";")[0] for line in found] == [
        "bad.jsonl:2: not JSON: Expecting value at column 1",
        "bad.jsonl:3: no user_prompt",
        "bad.jsonl:4: not UTF-8: byte 0xff at byte 18 of the line",
        "bad.jsonl:5: user_prompt is empty",
    ]
    message = await refusal(tmp_path, DatasetError, dataset__path="row.json")
    assert message.startswith(f"no dataset {tmp_path}/row.json. Did you mean rows.jsonl")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("nothere.py:answer", 'expected "file.py:function"; there is no function at'),
        ("model.py", 'expected "file.py:function"'),
        ("model.py:answr", "has no function 'answr'. It has: answer."),
        ("broken.py:answer", "broken.py failed: KeyError: 'x'"),
        ("leaves.py:answer", "leaves.py failed: SystemExit: 4"),
        ("model.txt:answer", "is not a Python file: its name must end in .py"),
    ],
)
async def test_a_script_that_cannot_be_used_says_why(tmp_path: Path, script: str, expected: str):
    model = "from random import Random\ndef answer(messages, tools, random): ...\n"
    for name, code in {
        "model.py": model,
        "model.txt": model,
        "broken.py": "{}['x']",
        "leaves.py": "exit(4)",
    }.items():
        (tmp_path / name).write_text(code)
    message = await refusal(tmp_path, llm__script=script)
    assert message.startswith(f"llm.script = {script!r}: ")
    assert expected in message


async def test_a_key_that_is_not_in_the_environment_is_missed_by_name(tmp_path: Path):
    message = await refusal(
        tmp_path, llm__model="gpt", llm__base_url="http://x/v1", llm__api_key_env="NO_SUCH_KEY"
    )
    assert message.endswith("or it is empty: export NO_SUCH_KEY=... first.")


async def test_the_agents_environment_has_not_the_key_of_the_llm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LEAN_LLM_KEY", "secret-of-the-llm")
    monkeypatch.setenv("LEAN_OTHER", "of-the-agent")
    [rollout] = await run_eval(
        configure(tmp_path, [("tells", "right")], llm__api_key_env="LEAN_LLM_KEY"), tmp_path
    )
    told = (tmp_path / "told-0").read_text()
    assert rollout.status is Status.GRADED, rollout.reason
    assert "of-the-agent" in told
    assert "secret-of-the-llm" not in told


async def test_a_policy_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path):
    config = configure(tmp_path, [("ok", "right")])
    missing = config.model_copy(update={"llm": None})
    with pytest.raises(UsageError, match="neither \\[llm\\] nor \\[policy\\] is given"):
        await run_eval(missing, tmp_path)
    text = (
        f'[rollout]\nentrypoint = "{AGENTS}"\n[dataset]\npath = "rows.jsonl"\n[policy]\npath = "run:nope"\n'
    )
    with pytest.raises(UsageError, match="Has the run 'nope' been trained to its end"):
        async with open_run(configure(tmp_path, [("ok", "right")], text), "eval", Workspace(tmp_path / "ws")):
            raise AssertionError("it opened")
