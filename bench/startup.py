"""What starting costs: fresh processes, interleaved, medians, ratios of one run.

    python bench/startup.py [--rounds 15] [--commands]

Every round starts each program once, in turn, so that a busy moment of the machine meets all of them. CPU
time is user plus system of the process and of those that it waits for. Absolute times do not travel between
machines; ratios do.

The two limits in seconds are promises to a person who waits, and are held in wall time on a machine that has
nothing else to do: pressing the tab key, and what a command adds to its work. Its work is a program without
it: bare Python for what only looks, the import of the agent for what needs its classes, and `by_hand.py` for
what runs it. With --commands the help of every command too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

PYTHON = [sys.executable]
# pydantic imports most of itself when the first model is made: the fair baseline for the imports below
PYDANTIC_MODEL = "from pydantic import BaseModel\nclass Config(BaseModel): name: str"
ENTRYPOINT_IMPORTS = (
    "from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, "
    "Grader, GraderContext"
)
ROOT = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class Program:
    """A command that is started many times, and what it is compared with."""

    name: str
    command: list[str]
    baseline: str = ""
    target: float | None = None  # highest ratio to the baseline that is accepted
    seconds: float | None = None  # highest wall time above the baseline's that is accepted
    folder: Path | None = None  # where it is started
    wall: list[float] = field(default_factory=list)  # seconds, one per round
    cpu: list[float] = field(default_factory=list)

    def start_once(self, environment: dict[str, str]) -> None:
        started = time.perf_counter()
        process = subprocess.Popen(
            self.command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=self.folder,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.wall.append(time.perf_counter() - started)
        self.cpu.append(usage.ru_utime + usage.ru_stime)
        if process.returncode:
            sys.exit(f"{self.name} ended with status {process.returncode}: {self.command}")


def osmosis_command() -> list[str]:
    """The installed console script beside this Python, else the module."""
    script = Path(sys.executable).parent / "osmosis"
    found = str(script) if script.exists() else shutil.which("osmosis")
    return [found] if found else [*PYTHON, "-m", "osmosis_ai"]


def of_a_project(project: Path) -> list[Program]:
    """Commands in a project of `osmosis init` that has two runs, above what does their work without them."""

    def osmosis(*arguments: str, work: str = "bare python", seconds: float = 0.3) -> Program:
        command = [*osmosis_command(), *arguments]
        return Program(f"osmosis {' '.join(arguments)}", command, work, seconds=seconds, folder=project)

    one_row = ("eval", "run", "eval.toml", "--limit", "1")
    for run in ([], ["--name", "second"]):
        subprocess.run([*osmosis_command(), *one_row, *run], cwd=project, check=True, capture_output=True)
    agent = Program("import agent", [*PYTHON, "-c", "import agent"], "bare python", folder=project)
    script = str(ROOT / "bench" / "by_hand.py")
    by_hand = Program("one row by hand", [*PYTHON, script], "bare python", folder=project)
    rows = "data/orders.jsonl"
    return [
        osmosis("__complete", "eval", "run", "--", seconds=0.1),
        osmosis("__complete", "runs", "show", "", seconds=0.1),
        osmosis("runs", "list"),
        osmosis("runs", "show", "hello"),
        osmosis("runs", "show", "hello", "--row", "0"),
        osmosis("sql", "SELECT count(*) FROM rollouts"),
        osmosis("drift", "hello"),
        osmosis("report", "hello"),
        osmosis("eval", "compare", "hello", "second"),
        osmosis("config", "schema"),
        osmosis("completion", "bash"),
        osmosis("dataset", "preview", rows),
        osmosis("dataset", "validate", rows),
        osmosis("doctor"),
        osmosis(*one_row, "--dry-run"),
        osmosis(*one_row),  # everything is done
        agent,
        osmosis("validate", "agent.py", work=agent.name),
        osmosis("eval", "grade", "hello", "--grader", "agent.py", work=agent.name),
        osmosis("eval", "submit", "eval.toml", "--dry-run", work=agent.name),
        by_hand,
        osmosis(*one_row, "--fresh", work=by_hand.name),
        osmosis(
            "test", "agent.py", "-d", rows, "--script", "model.py:answer", "--limit", "1", work=by_hand.name
        ),
    ]


def helps() -> list[Program]:
    """The help of every command."""
    code = "from osmosis_ai.cli.main import command_names as n; print(*(' '.join(c) for c in n()), sep='\\n')"
    names = subprocess.run([*PYTHON, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return [
        Program(f"osmosis {name} --help", [*osmosis_command(), *name.split(), "--help"], "bare python")
        for name in names.stdout.splitlines()
    ]


def programs() -> list[Program]:
    def importing(code: str, target: float | None = None) -> Program:
        return Program(code, [*PYTHON, "-c", code], "import pydantic", target)

    return [
        Program("bare python", [*PYTHON, "-c", "pass"]),
        Program("osmosis --help", [*osmosis_command(), "--help"], "bare python", 6.0),
        Program("osmosis --version", [*osmosis_command(), "--version"], "bare python"),
        Program("import pydantic", [*PYTHON, "-c", "import pydantic"], "bare python"),
        importing("import osmosis_ai.rollout", 1.5),
        importing("from osmosis_ai.rollout import AgentWorkflow", 1.5),
        Program("a pydantic model", [*PYTHON, "-c", PYDANTIC_MODEL], "bare python"),
        Program("what an entrypoint imports", [*PYTHON, "-c", ENTRYPOINT_IMPORTS], "a pydantic model"),
    ]


def measure(measured: list[Program], rounds: int) -> list[Program]:
    # bytecode is written by the first round, which is not counted
    for program in measured:
        program.start_once(dict(os.environ))
        program.wall.clear()
        program.cpu.clear()
    for _ in range(rounds):
        for program in measured:
            program.start_once(dict(os.environ))
    return measured


def table(measured: list[Program]) -> tuple[str, bool]:
    """The figures as text, and whether every target is met: ratios and seconds of wall time."""
    by_name = {program.name: program for program in measured}
    lines = [f"{'program':<56} {'wall ms':>8} {'cpu ms':>8}  {'ratio':>12}  target"]
    met = True
    for program in measured:
        wall, cpu = statistics.median(program.wall), statistics.median(program.cpu)
        line = f"{program.name:<56} {wall * 1000:8.1f} {cpu * 1000:8.1f}"
        if program.baseline:
            base = by_name[program.baseline]
            ratio, added = wall / statistics.median(base.wall), wall - statistics.median(base.wall)
            line += f"  {ratio:5.2f} {cpu / statistics.median(base.cpu):6.2f}"
            kept, target = verdict(program, ratio, added)
            met, line = met and kept, f"{line}  {target}"
        lines.append(line)
    return "\n".join(lines), met


def verdict(program: Program, ratio: float, added_seconds: float) -> tuple[bool, str]:
    if program.target is not None:
        kept = ratio <= program.target
        return kept, f"<= {program.target:g} x {program.baseline}: {'met' if kept else 'MISSED'}"
    if program.seconds is not None:
        kept = added_seconds <= program.seconds
        said = "met" if kept else "MISSED"
        return kept, f"+{added_seconds:.2f} s <= {program.seconds:g} s above {program.baseline}: {said}"
    return True, f"(x {program.baseline})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--commands", action="store_true", help="the help of every command too")
    options = parser.parse_args()
    # this checkout before anything that is installed
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*osmosis_command(), "init", "hello"], cwd=folder, check=True, capture_output=True)
        started = [*programs(), *of_a_project(Path(folder) / "hello"), *(helps() if options.commands else [])]
        text, met = table(measure(started, options.rounds))
    version = sys.version.split()[0]
    print(f"Python {version}, medians of {options.rounds} fresh processes; ratios of wall and of CPU time")
    print(text)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
