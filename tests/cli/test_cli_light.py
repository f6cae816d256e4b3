"""What a command loads: it adds to its work what it needs for it, and no more."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNS_ROLLOUTS = {
    "osmosis_ai.controller.rollouts", "osmosis_ai.gateway.app", "osmosis_ai.rollout.backends.local",
    "aiohttp", "fastapi", "httptools", "litellm", "numpy", "starlette", "torch", "uvicorn",
}  # fmt: skip


def loaded(*arguments: str) -> tuple[int, set[str]]:
    """The exit code of a command, and the modules that its process ended with."""
    code = (
        f"import sys\nsys.argv = {['osmosis', *arguments]!r}\nfrom osmosis_ai.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    code = end.code or 0\n"
        "print(code, *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, *modules = done.stderr.splitlines()[-1].split()
    return int(status), set(modules)


@pytest.mark.parametrize(
    "command",
    [
        "runs list",
        "runs show one",
        "runs show one --row 0",
        "eval compare one two",
        "report one",
        "drift one",
    ],
)
def test_what_looks_at_runs_loads_nothing_that_runs_one(bench, command):
    for run_id in ("one", "two"):
        bench.store(run_id, {0: [1.0], 1: [0.0], 2: [1.0], 3: [1.0]})
    code, modules = loaded(*command.split())
    assert (code, modules & (RUNS_ROLLOUTS | {"pydantic"})) == (0, set())


def test_an_eval_that_has_all_its_results_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "osmosis_ai", "init", "hello"], check=True, capture_output=True)
    monkeypatch.chdir(tmp_path / "hello")
    with open("agent.py", "a") as agent:
        agent.write('\nwith open("imports", "a") as file:\n    file.write("x")\n')
    again = ("eval", "run", "eval.toml", "--limit", "1")
    assert subprocess.run([sys.executable, "-m", "osmosis_ai", *again], capture_output=True).returncode == 0
    for command in (again, (*again, "--dry-run")):
        code, modules = loaded(*command)
        assert (code, modules & RUNS_ROLLOUTS) == (0, set())
        assert Path("imports").read_text() == "x"  # nor is the user's code


def test_a_doctor_does_not_ask_torch_where_there_is_no_driver(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    code = (
        "from osmosis_ai.cli import machine\nmachine.DRIVERS = ()\nprint(machine.gpu(None).state, end=' ')\n"
    )
    code += "import sys\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"ok {sys.platform == 'darwin'}\n"
