"""What a person sees who types something wrong: one message with the way out, and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from osmosis_ai.cli.main import main

CONFIG = """
[rollout]
entrypoint = "agent.py"
[dataset]
path = "rows.jsonl"
[llm]
model = "scripted"
script = "model.py:answer"
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def osmosis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The command, run in this process in an empty folder that holds only `run.toml`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["osmosis", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("eval run nope.toml", "error: no such config file: nope.toml. Did you mean run.toml?"),
        ("eval run .", "error: .: cannot be read as UTF-8 text"),
        ("eval run", "Error: Missing argument 'CONFIG'."),
        ("eval run run.toml --set", "Error: Option '--set' requires an argument."),
        (
            "eval run run.toml --set x",
            "error: --set 'x': expected TABLE.KEY=VALUE, e.g. --set dataset.limit=10",
        ),
        ("eval run run.toml --set a.b.c=1", "error: --set 'a.b.c=1': expected TABLE.KEY=VALUE"),
        ("eval run run.toml --set .x=1", "error: --set '.x=1': expected TABLE.KEY=VALUE"),
        ("eval run run.toml --set x.=1", "error: --set 'x.=1': expected TABLE.KEY=VALUE"),
        ("eval run run.toml --set eval.attempts=1x", 'eval.attempts = "1x" must be a valid integer'),
        ("eval run run.toml --set eval.attemps=1", "Did you mean 'attempts'?"),
        ("eval run run.toml --name ../up", '--name: run.name = "../up" must be at most 96 letters'),
        ("eval run run.toml", "error: no dataset rows.jsonl. The folder"),
        ("train run run.toml", "error: no dataset rows.jsonl. The folder"),
        ("eval rum", "Error: no such command 'rum'. Did you mean 'run'?"),
        ("evals run", "Error: no such command 'evals'. Did you mean 'eval'?"),
        ("list", "Error: no such command 'list'. Did you mean 'runs list'?"),
        (
            "eval run run.toml --workspcae x",
            "Error: No such option '--workspcae'. Did you mean '--workspace'?",
        ),
        ("runs show x --rwo 3", "Error: No such option '--rwo'. Did you mean '--row'?"),
        ("runs list", "osmosis.db; run an eval first, or name --workspace"),
        ("runs show x", "osmosis.db; run an eval first, or name --workspace"),
        ("runs show", "Error: Missing argument 'RUN_ID'."),
        ("policy new p", "error: say what text the tokenizer is fitted to: --from-run RUN or --text FILE"),
        (
            "policy new run.toml --text run.toml",
            "error: no folder can be made at run.toml: run.toml is a file",
        ),
        (
            "policy new run.toml/x --text run.toml",
            "made at run.toml/x: run.toml is a file; choose another path",
        ),
        (
            "policy new . --text run.toml",
            "error: . exists and is not empty; choose another path or remove it",
        ),
        ("policy new p --text nope.txt", "error: --text nope.txt: cannot be read as UTF-8 text"),
        ("policy new p --from-run nope", "error: there is no database"),
        (
            "policy new p --text run.toml --layers 0",
            "Invalid value for '--layers': 0 is not in the range x>=1",
        ),
    ],
)
def test_a_usage_error_is_one_message_and_exit_code_2(osmosis, arguments: str, expected: str):
    done = osmosis(*arguments.split())
    assert expected in done.err
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err


def test_many_mistakes_come_together(osmosis):
    done = osmosis("eval", "run", "run.toml", "--set", "a.b=1", "--set", "eval.x=2", "--set", "run.seed=-1")
    assert len(done.err.splitlines()) == 3


def test_nothing_is_made_by_a_command_that_was_refused(osmosis, tmp_path: Path):
    osmosis("eval", "run", "run.toml")
    osmosis("eval", "run", "run.toml", "--set", "a.b=1")
    osmosis("policy", "new", "p", "--from-run", "nope")
    osmosis("runs", "list")
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("eval", "run", "run.toml", "--fresh", "--retry", "errors"), "--retry goes on with the old one"),
        (("eval", "run", "run.toml", "--fresh", "--accept-changes"), "--accept-changes goes on with the old"),
        (("train", "run", "run.toml", "--accept-changes"), "--accept-changes is for evals: the weights of a"),
    ],
)
def test_options_that_contradict_each_other_or_the_command_are_refused_with_the_reason(
    osmosis, arguments, said
):
    done = osmosis(*arguments)
    assert (done.code, said in done.err) == (2, True), done.err


def test_a_reader_that_has_seen_enough_is_no_failure():
    command = [sys.executable, "-m", "osmosis_ai", "config", "schema"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")
