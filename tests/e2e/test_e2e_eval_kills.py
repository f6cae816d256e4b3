"""An eval that is killed again and again: what it said is stored, what is stored is not done again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

ATTEMPTS = 2
AGENT = """
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context
from osmosis_ai.rollout.policy_client import PolicyEndpoint, chat

class Asks(AgentWorkflow):
    async def run(self, ctx):
        rollout = get_rollout_context()
        self.messages = list(ctx.prompt)
        rollout.register_agent("asker", self)
        body = {"model": "osmosis-rollout", "messages": self.messages}
        answer = await chat(PolicyEndpoint.of(rollout), "asker", body)
        self.messages.append(answer["choices"][0]["message"])

class Label(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(ctx.label))

def answer(messages, tools, random):
    return {"content": "so it is"}
"""
CONFIG = """
[run]
name = "killed"
[rollout]
entrypoint = "agent.py"
max_concurrent = 4
[dataset]
path = "rows.jsonl"
[llm]
model = "scripted"
script = "agent.py:answer"
[eval]
attempts = 2
"""
# One interpreter, many lives: each line of input forks a child that runs the real command in a session of its
# own, so that a life costs no imports.
LIVES = """
import os, sys
import osmosis_ai.cli.eval
from osmosis_ai.cli.main import main

for said in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(os.open(said.strip(), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        sys.argv = ["osmosis", "eval", "run", "eval.toml", "--json"]
        main()
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Lives:
    """The command, started and killed in one folder; `said` is what it has acknowledged so far."""

    def __init__(self, folder: Path, rows: int) -> None:
        (folder / "agent.py").write_text(AGENT)
        (folder / "eval.toml").write_text(CONFIG)
        lines = [json.dumps({"user_prompt": f"row {i}", "ground_truth": i / 1000}) for i in range(rows)]
        (folder / "rows.jsonl").write_text("\n".join(lines))
        self._folder = folder
        self._said = folder / "said.jsonl"
        self._said.touch()
        with (folder / "errors.txt").open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", LIVES],
                cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    @property
    def said(self) -> list[dict[str, Any]]:
        """A line that a kill has cut off was never read by anybody."""
        whole, _, _ = self._said.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def begin(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self._said}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> int:
        """The exit status of the life."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def live_and_be_killed(self, chance: random.Random) -> None:
        """After some lines, perhaps none, and some milliseconds; before its server of user code, or after."""
        before, pid = self._said.stat().st_size, self.begin()
        wanted, deadline = chance.choice([0, 1, 1, 400, 1600]), time.monotonic() + 60
        while self._said.stat().st_size < before + wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.02) if wanted else chance.uniform(0, 1.0))
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        victims = [*map(int, children), pid]
        for victim in victims if chance.random() < 0.5 else reversed(victims):
            with suppress(ProcessLookupError):
                os.killpg(victim, signal.SIGKILL)
        status = self.end()
        assert status == -signal.SIGKILL, (status, (self._folder / "errors.txt").read_text())

    def close(self) -> None:
        self._process.communicate(timeout=180)

    def results(self) -> Iterator[tuple[str, int, int, float]]:
        """Every graded rollout of the store: id, row, member, reward."""
        db = apsw.Connection(str(self._folder / ".osmosis" / "osmosis.db"))
        assert db.execute("PRAGMA integrity_check").get == "ok"
        yield from db.execute(
            "SELECT rollout_id, row_index, member, reward FROM rollout JOIN sample USING (rollout_id) "
            "WHERE status = 'graded'"
        )
        db.close()


@pytest.mark.parametrize(
    ("kills", "rows"),
    [pytest.param(5, 40, id="five"), pytest.param(250, 6000, id="hundreds", marks=pytest.mark.slow)],
)
def test_what_was_said_is_stored_and_every_place_counts_once_however_often_it_is_killed(
    tmp_path: Path, kills: int, rows: int
):
    lives, chance = Lives(tmp_path, rows), random.Random(kills)
    for _ in range(kills):
        lives.live_and_be_killed(chance)
    killed = {line["rollout_id"] for line in lives.said}
    lives.begin()
    assert lives.end() == 0, (tmp_path / "errors.txt").read_text()
    lives.close()

    rollouts = [line for line in lives.said if line["event"] == "rollout"]
    report = lives.said[-1]
    said = {line["rollout_id"]: (line["row"], line["member"], line["reward"]) for line in rollouts}
    stored = {name: (row, member, reward) for name, row, member, reward in lives.results()}
    assert said.items() <= stored.items()  # nothing that was acknowledged is lost
    assert len(said) == len(rollouts)  # and nothing was acknowledged twice
    places = Counter((row, member) for row, member, _ in stored.values())
    assert places == Counter({(row, member): 1 for row in range(rows) for member in range(ATTEMPTS)})
    assert all(reward == row / 1000 for row, _, reward in stored.values())
    assert (report["rows"], report["graded"], report["failures"]) == (rows, rows * ATTEMPTS, {})
    assert 0 < len(killed) < rows * ATTEMPTS
