"""What holds for every command of the table: its example works, and its output is for pipes and programs."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from stored_workspace import Bench

from osmosis_ai.cli.documents import leaves
from osmosis_ai.cli.lines import LINES

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "docs" / "schemas"
COMMANDS = leaves()
TRAIN = """
[rollout]
entrypoint = "agent.py"
[dataset]
path = "data/orders.jsonl"
[policy]
path = "policy"
[sampling]
max_tokens = 4
[train]
rows_per_step = 2
group_size = 2
"""
# With --json the example itself is run again, but for those whose second run is another thing.
INSTEAD = {
    "policy new": ["policy new other --from-run hello --hidden-size 8 --layers 1"],
    "eval run": ["eval run eval.toml --name third --limit 4"],
    "runs import": ["runs import hello.jsonl --workspace other"],
    "report": ["report hello -o report.html"],
    "runs show": ["runs show hello", "runs show hello --row 0", "runs show train"],
    "runs delete": ["runs delete second --dry-run", "runs delete third --yes"],
    "eval submit": ["eval submit eval.toml --dry-run", "eval submit eval.toml --dry-run --set a.b=1"],
}


def example_of(command: str) -> str:
    """`eval run eval.toml`, from "Example: osmosis eval run eval.toml"; what is redirected is printed."""
    epilog = COMMANDS[command].epilog or ""
    assert epilog.startswith(f"Example: osmosis {command}"), f"osmosis {command} --help has no example"
    return epilog.removeprefix("Example: osmosis ").partition(" > ")[0]


def test_every_example_works_in_the_project_of_osmosis_init_and_every_line_of_json_is_as_declared(
    tmp_path, monkeypatch, capfdbinary
):
    """One test, because the commands need what those before them have made."""
    bench = Bench(tmp_path, monkeypatch, capfdbinary)
    bench.run(*example_of("init").split())
    monkeypatch.chdir(tmp_path / "hello")
    Path("train.toml").write_text(TRAIN)
    bench.run("eval", "run", "eval.toml")
    for command in COMMANDS:
        if command in ("init", "serve"):
            continue
        said = bench.run(*shlex.split(example_of(command)))
        assert said.code == 0, f"{example_of(command)}: {said.err.decode()}"
        assert b"\x1b" not in said.out + said.err, f"{command} sends escapes into a pipe"
        for arguments in INSTEAD.get(command, [example_of(command)]):
            hold(command, bench.run(*shlex.split(arguments), *([] if "--json" in arguments else ["--json"])))


def hold(command: str, done: Any) -> None:
    """Every line is valid, and no field of it is undeclared."""
    schema = json.loads((SCHEMAS / f"{command.replace(' ', '-')}.schema.json").read_text())
    kinds = [kind["properties"] for kind in schema.get("anyOf", [schema])]
    assert done.code in (0, 2), done.err
    assert done.out, command
    assert b"\x1b" not in done.out + done.err
    for line in map(json.loads, done.out.splitlines()):
        jsonschema.validate(line, schema, cls=jsonschema.Draft202012Validator)
        declared = [set(kind) for kind in kinds if kind["event"]["const"] == line["event"]]
        assert any(set(line) <= fields for fields in declared), f"{command}: {line} has more than {declared}"
        assert list(line)[:2] == ["event", "schema_version"]


def test_the_server_of_the_example_listens_until_it_is_told_to_stop(tmp_path, monkeypatch, capsys):
    Bench(tmp_path, monkeypatch, capsys).run("init", "hello")
    command = [sys.executable, "-m", "osmosis_ai", *example_of("serve").split(), "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path / "hello", env=environment, stdout=subprocess.PIPE) as server:
        line = json.loads(server.stdout.readline())
        server.send_signal(signal.SIGINT)
    jsonschema.validate(line, json.loads((SCHEMAS / "serve.schema.json").read_text()))
    assert server.returncode == 130


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_takes_json_has_declared_its_lines_and_an_example(command):
    assert command in LINES
    options = {name for param in COMMANDS[command].params for name in param.opts}
    assert "--json" in options
    assert example_of(command).startswith(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_is_mistyped_gets_its_nearest(bench, command):
    done = bench.run(*command.split(), "--jsno")
    assert (done.code, done.out) == (2, "")
    assert re.search(r"No such option '--jsno'.*Did you mean .*'--json'", done.err), done.err


def test_no_line_is_declared_of_a_command_that_is_not_there():
    assert set(LINES) == set(COMMANDS)


# --- on a terminal


def on_a_terminal(folder: Path, *arguments: str, **environment: str) -> str:
    """Everything that the command sends to a terminal of 80 columns."""
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "osmosis_ai", *arguments]
    settings = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "COLUMNS": "80",
        **environment,
    }
    with subprocess.Popen(
        command, cwd=folder, env=os.environ | settings, stdin=terminal, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        said = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the last writer is gone
                break
            if not piece:
                break
            said += piece
    os.close(master)
    assert process.returncode == 0, said.decode()
    return said.decode()


COLOUR = re.compile(r"\x1b\[[0-9;]*(3[0-8]|4[0-8]|9[0-7])[0-9;]*m")


def test_a_terminal_gets_colours_and_with_no_color_none(tmp_path, monkeypatch, capsys):
    Bench(tmp_path, monkeypatch, capsys).run("init", "hello")
    run = ("eval", "run", "eval.toml", "--limit", "4", "--fresh")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert COLOUR.search(on_a_terminal(tmp_path / "hello", *run))
    assert not COLOUR.search(on_a_terminal(tmp_path / "hello", *run, NO_COLOR="1"))
    assert "\x1b" not in on_a_terminal(tmp_path / "hello", *run, TERM="dumb")
