"""Completion: what it offers, in each shell, and that it imports next to nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.cli.complete import candidates
from osmosis_ai.cli.completion import SCRIPTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(bench):
    bench.store("before", {0: [1.0]})
    bench.store("after", {0: [0.0]})
    (bench.root / "eval.toml").touch()
    (bench.root / "notes.md").touch()
    (bench.root / "data").mkdir()
    (bench.root / "data" / "train.toml").touch()
    return bench


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ev", ["eval"]),
        ("-", ["--help", "--version"]),
        ("eval r", ["run"]),
        ("eval ", ["--help", "compare", "grade", "run", "submit"]),
        ("nonsense ", []),
        ("eval nonsense ", []),
        ("eval run ", ["data/", "eval.toml"]),
        ("eval run data/", ["data/train.toml"]),
        ("eval run --fresh e", ["eval.toml"]),
        ("eval run eval.toml ", []),
        ("eval run eval.toml --na", ["--name"]),
        ("eval run eval.toml --name ", []),
        ("eval run eval.toml --fresh --fr", []),  # once is enough
        ("eval run eval.toml --set run.name=x --set run.s", ["run.seed="]),
        ("runs show b", ["before"]),
        ("runs show x --workspace elsewhere --workspace .o", [".osmosis/"]),
        ("eval compare after ", ["after", "before"]),
        ("eval compare --workspace elsewhere ", []),
        ("runs export --format ", ["atif", "jsonl", "parquet"]),
        ("runs export --format atif b", ["before"]),
        ("runs delete before a", ["after"]),  # as many as you like
        ("policy new p --from-run a", ["after"]),
        ("completion z", ["zsh"]),
        ("report before -o n", ["notes.md"]),
    ],
)
def test_what_comes_next(project, line, expected):
    assert candidates(line.split(" ")) == expected


def test_a_name_with_control_characters_is_not_sent_to_the_terminal(project, capsys):
    from osmosis_ai.cli.complete import main

    (project.root / "\x1b[31mred.toml").touch()
    main(["eval", "run", ""])
    assert capsys.readouterr().out == "data/\neval.toml\n"


def test_a_database_that_cannot_be_read_completes_nothing(project):
    (project.root / ".osmosis" / "osmosis.db").write_bytes(b"no database")
    assert candidates(["runs", "show", ""]) == []


@pytest.mark.parametrize("words", [["eval", "run", "--"], ["runs", "show", ""]])
def test_completing_imports_neither_click_nor_the_commands(project, words):
    code = (
        "import sys; from osmosis_ai.cli.main import main\n"
        f"sys.argv = ['osmosis', '__complete', *{words}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, *sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, *modules = done.stdout.splitlines()[-1].split()
    assert status == "0"
    heavy = {"click", "rich", "pydantic", "asyncio", "osmosis_ai.config", "osmosis_ai.cli.eval"}
    assert heavy.isdisjoint(modules)


ASK = {
    "bash": 'COMP_WORDS=(osmosis runs show be); COMP_CWORD=3; _osmosis; printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": 'compadd() { print -l -- "${@:#-*}"; }; words=(osmosis runs show be); CURRENT=4; _osmosis',
    "fish": 'complete -C "osmosis runs show be"',
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_of_the_shell_completes_the_id_of_a_run(project, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (project.root / "bin").mkdir()
    command = project.root / "bin" / "osmosis"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m osmosis_ai "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(project.root),
    }
    script = ("compdef() { :; }\n" if shell == "zsh" else "") + SCRIPTS[shell] + ASK[shell]
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, env=environment, timeout=180)
    assert done.stdout.split() == ["before"], done.stderr
