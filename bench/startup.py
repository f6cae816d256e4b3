"""What starting costs: fresh processes, interleaved, medians, ratios of one run.

    python bench/startup.py [--rounds 15]

Every round starts each program once, in turn, so that a busy moment of the machine meets all of them. CPU
time is user plus system of the process itself. Absolute times do not travel between machines; ratios do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
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
    wall: list[float] = field(default_factory=list)  # seconds, one per round
    cpu: list[float] = field(default_factory=list)

    def start_once(self, environment: dict[str, str]) -> None:
        started = time.perf_counter()
        process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, env=environment)
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


def programs() -> list[Program]:
    def importing(code: str, target: float | None = None) -> Program:
        return Program(code, [*PYTHON, "-c", code], "import pydantic", target)

    return [
        Program("bare python", [*PYTHON, "-c", "pass"]),
        Program("osmosis --help", [*osmosis_command(), "--help"], "bare python", 6.0),
        Program("osmosis --version", [*osmosis_command(), "--version"], "bare python"),
        Program("osmosis eval run --help", [*osmosis_command(), "eval", "run", "--help"], "bare python"),
        Program("import pydantic", [*PYTHON, "-c", "import pydantic"], "bare python"),
        importing("import osmosis_ai.rollout", 1.5),
        importing("from osmosis_ai.rollout import AgentWorkflow", 1.5),
        Program("a pydantic model", [*PYTHON, "-c", PYDANTIC_MODEL], "bare python"),
        Program("what an entrypoint imports", [*PYTHON, "-c", ENTRYPOINT_IMPORTS], "a pydantic model"),
    ]


def measure(rounds: int) -> list[Program]:
    measured = programs()
    # The checkout before anything installed; bytecode is written by the first round, which is not counted.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    for program in measured:
        program.start_once(environment)
        program.wall.clear()
        program.cpu.clear()
    for _ in range(rounds):
        for program in measured:
            program.start_once(environment)
    return measured


def table(measured: list[Program]) -> tuple[str, bool]:
    """The figures as text, and whether every target is met (in wall time)."""
    by_name = {program.name: program for program in measured}
    lines = [f"{'program':<56} {'wall ms':>8} {'cpu ms':>8}  {'ratio':>12}  target"]
    met = True
    for program in measured:
        wall, cpu = statistics.median(program.wall), statistics.median(program.cpu)
        line = f"{program.name:<56} {wall * 1000:8.1f} {cpu * 1000:8.1f}"
        if program.baseline:
            base = by_name[program.baseline]
            ratio = wall / statistics.median(base.wall)
            cpu_ratio = cpu / statistics.median(base.cpu)
            line += f"  {ratio:5.2f} {cpu_ratio:6.2f}"
            if program.target is not None:
                met = met and ratio <= program.target
                verdict = "met" if ratio <= program.target else "MISSED"
                line += f"  <= {program.target:g} x {program.baseline}: {verdict}"
            else:
                line += f"  (x {program.baseline})"
        lines.append(line)
    return "\n".join(lines), met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    text, met = table(measure(rounds))
    version = sys.version.split()[0]
    print(f"Python {version}, medians of {rounds} fresh processes; ratios of wall and of CPU time")
    print(text)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
