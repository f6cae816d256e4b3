"""What a resumed run must share with its first life, and what it need not."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.config import load_config
from osmosis_ai.controller.identity import changes_of, local_sources, refuse_changes, run_identity
from osmosis_ai.errors import UsageError
from osmosis_ai.store.base import RunRecord
from osmosis_ai.store.workspace import Workspace

TOML = """
[rollout]
entrypoint = "agent.py"
[dataset]
path = "rows.jsonl"
[llm]
model = "scripted"
script = "model.py:answer"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(TOML)
    (tmp_path / "rows.jsonl").write_text('{"user_prompt": "2 + 2?"}\n')
    (tmp_path / "agent.py").write_text("import tools\nimport json\n")
    (tmp_path / "tools.py").write_text("from prompts.texts import GREETING\n")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "__init__.py").write_text("")
    (tmp_path / "prompts" / "texts.py").write_text("GREETING = 'hello'\n")
    (tmp_path / "model.py").write_text("def answer(messages, tools, random): ...\n")
    (tmp_path / "notes.py").write_text("# nobody imports this\n")
    return tmp_path


def changed_keys(folder: Path, file: str, text: str) -> set[str]:
    def identity():
        return run_identity(load_config(folder / "run.toml"), "eval", Workspace(folder / "ws"))

    before = identity()
    (folder / file).write_text(text)
    after = identity()
    return {key for key in {*before, *after} if before.get(key) != after.get(key)}


def test_the_sources_are_the_entrypoint_and_what_it_imports_beside_itself(folder: Path):
    names = [str(path.relative_to(folder)) for path in local_sources(folder / "agent.py")]
    assert names == ["agent.py", "prompts/__init__.py", "prompts/texts.py", "tools.py"]


@pytest.mark.parametrize(
    ("file", "text", "keys"),
    [
        ("prompts/texts.py", "GREETING = 'bye'\n", {"entrypoint", "code.prompts/texts.py"}),
        ("notes.py", "# still nobody\n", set()),
        ("model.py", "def answer(messages, tools, random): return 1\n", {"model"}),
        ("rows.jsonl", '{"user_prompt": "2 + 3?"}\n', {"dataset"}),
        ("run.toml", TOML.replace("[dataset]", 'grader = "Strict"\n[dataset]'), {"rollout.grader"}),
        ("run.toml", TOML + "[workflow]\nwords = 3\n", {"workflow.words"}),
        ("run.toml", TOML.replace("[dataset]", "max_concurrent = 3\n[dataset]"), set()),
    ],
)
def test_a_change_of_what_decides_a_result_is_named_and_others_are_free(folder, file, text, keys):
    assert changed_keys(folder, file, text) == keys


def test_a_changed_file_of_the_code_is_named_once(folder: Path):
    def identity():
        return run_identity(load_config(folder / "run.toml"), "eval", Workspace(folder / "ws"))

    known = RunRecord("r", "eval", "done", 0.0, identity(), {})
    (folder / "tools.py").write_text("import prompts\n")
    changes = changes_of(known, identity())
    assert list(changes) == ["code.tools.py"]
    with pytest.raises(UsageError) as refused:
        refuse_changes(known, changes)
    _, *lines, _ = str(refused.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["  code.tools.py"]
