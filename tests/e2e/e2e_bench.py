"""Configurations and the command line, for the tests of this folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from osmosis_ai.cli.main import main

CALCULATOR = Path(__file__).parents[2] / "examples" / "calculator"
TABLES = """
[rollout]
entrypoint = "{entrypoint}"
agent_timeout_seconds = 60
[dataset]
path = "{data}"
[policy]
path = "run:sft"
[sampling]
max_tokens = 48
[train]
rows_per_step = 2
group_size = 4
steps = 3
"""
RECORD = """
[run]
name = "record"
[rollout]
entrypoint = "{entrypoint}"
[dataset]
path = "{data}"
[llm]
model = "scripted"
script = "{script}:answer"
[eval]
attempts = 8
"""
SFT = """
[run]
name = "sft"
[rollout]
entrypoint = "{entrypoint}"
[dataset]
path = "{data}"
[policy]
path = "start"
[train]
algorithm = "sft"
from_run = "record"
min_reward = 0.0
steps = 90
batch_samples = 16
learning_rate = 1e-2
final_learning_rate = 0.1
checkpoint_every = 30
"""


@dataclass(frozen=True)
class Bench:
    """A folder with configs and a workspace, and the command that works in it."""

    folder: Path

    @property
    def workspace(self) -> Path:
        return self.folder / "ws"

    def osmosis(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The command in a process of its own."""
        command = [sys.executable, "-m", "osmosis_ai", *self._whole(arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=180)
        if check and done.returncode:
            raise AssertionError(f"{arguments} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    def here(self, *arguments: str) -> str:
        """What the command prints; in this process, where torch has been imported already."""
        shown = StringIO()
        whole = mock.patch.object(sys, "argv", ["osmosis", *self._whole(arguments)])
        with chdir(self.folder), whole, redirect_stdout(shown):
            try:
                main()
            except SystemExit as ended:
                assert not ended.code, f"{arguments} exited with {ended.code}:\n{shown.getvalue()}"
        return shown.getvalue()

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.here(*arguments, "--json").splitlines()]

    def _whole(self, arguments: Sequence[str]) -> list[str]:
        return [*arguments, "--workspace", str(self.workspace)]

    def write(self, name: str, text: str, **values: str) -> Path:
        known = {
            "entrypoint": str(CALCULATOR / "strands_agent.py"),
            "data": str(self.folder / "four.jsonl"),
            "script": str(CALCULATOR / "demonstrations.py"),
        }
        path = self.folder / name
        path.write_text(text.format(**{**known, **values}))
        return path


def teach(bench: Bench, rows: int, sft: str, **values: str) -> None:
    """Record, make and fine-tune a very small policy, by the commands that a user would type."""
    lines = (CALCULATOR / "data" / "train.jsonl").read_text().splitlines()[:rows]
    (bench.folder / "four.jsonl").write_text("\n".join(lines) + "\n")
    bench.write("record.toml", RECORD, **values)
    bench.write("sft.toml", sft, **values)
    bench.here("eval", "run", "record.toml")
    bench.here("policy", "new", "start", "--from-run", "record", "--hidden-size", "32", "--layers", "2")
    bench.here("train", "run", "sft.toml")


def start(bench: Bench, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "osmosis_ai", *arguments, "--workspace", str(bench.workspace), "--json"]
    return subprocess.Popen(
        command, cwd=bench.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
