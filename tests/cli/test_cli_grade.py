"""`osmosis eval grade`: new rewards for old conversations; the old ones stay."""

import asyncio
import json
from pathlib import Path

import pytest

from osmosis_ai.cli import grade_session as command
from osmosis_ai.errors import StoreError
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Rollout

REWARDS = {0: [1.0], 1: [0.0], 2: [None], 3: [0.0]}
GRADERS = '''
import asyncio, os, time
from osmosis_ai.rollout import Grader

class Odd(Grader):
    """1 for odd rows, by metadata; the label must be there too."""
    async def grade(self, ctx):
        print("noise")
        assert int(ctx.label) % 2 == 0 and ctx.sample.messages[-1]["content"].endswith("by a")
        assert ctx.sample.reward is None and ctx.sample.metrics == {}
        ctx.sample.metrics["length"] = float(len(ctx.sample.messages))
        ctx.sample.messages.clear()  # a grader has a copy
        ctx.set_reward(ctx.metadata["kind"] == "odd")

class Bad(Grader):
    async def grade(self, ctx):
        if ctx.label == "0":
            time.sleep(5)
        if ctx.label == "2":
            raise SystemExit(3)
        if ctx.label == "4":
            return
        ctx.set_reward(0.5)

class Judged(Grader):
    """Asks the judge, and makes the best of its silence."""
    async def grade(self, ctx):
        from osmosis_ai import ProviderRequestError, evaluate_rubric
        try:
            text = ctx.sample.messages[-1]["content"]
            ctx.set_reward((await evaluate_rubric("Is it even?", text, judge=ctx.judge)).score)
        except ProviderRequestError:
            ctx.set_reward(0.0)
'''
JUDGE = """
[rollout]
entrypoint = "agent.py"
[dataset]
path = "rows.jsonl"
[judge]
model = "scripted"
script = "judge.py:verdict"
"""
VERDICT = """
def verdict(messages, tools, random):
    row = int(messages[-1]["content"].split("row ")[1].split()[0])
    return {"content": '{"score": %s}' % (1 if row % 2 == 0 else 0)}
"""


@pytest.fixture
def stored(bench):
    bench.store("a", REWARDS)
    (bench.root / "graders.py").write_text(GRADERS)
    return bench


def rollouts(bench, run_id: str) -> list[Rollout]:
    async def read() -> list[Rollout]:
        store = SqliteStore(bench.root / ".osmosis" / "osmosis.db")
        try:
            return await store.rollouts(RolloutFilter(run_id))
        finally:
            await store.close()

    return sorted(asyncio.run(read()), key=lambda rollout: rollout.row_index)


def test_both_gradings_stay_and_are_compared(stored):
    before = stored.run("runs", "show", "a", "--json").out
    done = stored.run("eval", "grade", "a", "--grader", "graders.py:Odd")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "run a-Odd: the rollouts of a, graded again: 4 graded",
        "  mean reward 0.333 -> 0.667 over 3 rows",
        "  4 of 4 rewards changed",
        "       0 -> 1          2  first row 1: row 1 by a",
        "       1 -> 0          1  first row 0: row 0 by a",
        "       - -> 0          1  first row 2: row 2 by a",
    ]
    assert "noise" in done.err and "noise" not in done.out
    assert stored.run("runs", "show", "a", "--json").out == before
    old, new = rollouts(stored, "a"), rollouts(stored, "a-Odd")
    assert [rollout.reward for rollout in new] == [0.0, 1.0, 0.0, 1.0]
    assert [r.turns[1].response for r in new] == [r.turns[1].response for r in old]
    assert new[0].samples["main"].messages == old[0].samples["main"].messages
    assert new[0].samples["main"].metrics == {"length": 5.0}


def test_the_new_run_says_where_it_comes_from(stored):
    stored.run("eval", "grade", "a", "--grader", "graders.py:Odd", "--name", "again")
    runs = [json.loads(line)["run"] for line in stored.run("runs", "list", "--json").out.splitlines()]
    run = next(run for run in runs if run["run_id"] == "again")
    assert (run["kind"], run["state"], run["identity"]["graded_from"]) == ("eval", "done", "a")
    assert run["identity"]["grader"].startswith("graders.py:Odd ")
    assert "grader was None, is graders.py:Odd" in stored.run("eval", "compare", "a", "again").err


def test_a_grader_that_blocks_exits_or_gives_nothing_fails_its_own_rollout_and_no_other(stored):
    done = stored.run("eval", "grade", "a", "--grader", "graders.py:Bad", "--timeout", "0.3", "--json")
    assert json.loads(done.out)["rollouts"] == {"grader_timeout": 1, "grader_error": 2, "graded": 1}
    assert [(r.status.value, r.reward) for r in rollouts(stored, "a-Bad")] == [
        ("grader_timeout", None),
        ("grader_error", None),
        ("grader_error", None),
        ("graded", 0.5),
    ]
    assert "Bad.grade exceeded its deadline of 0.3 s" in done.err


def test_the_same_command_goes_on_and_grades_nothing_twice(stored):
    stored.run("eval", "grade", "a", "--grader", "graders.py:Odd")
    done = stored.run("eval", "grade", "a", "--grader", "graders.py:Odd")
    assert (done.code, "noise" in done.err) == (0, False)
    assert len(rollouts(stored, "a-Odd")) == 4


def test_a_grading_that_was_stopped_goes_on_with_what_it_left(stored, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(command, "progress", lambda display, total: _full_disk_after_two())
        done = stored.run("eval", "grade", "a", "--grader", "graders.py:Odd", "--max-concurrent", "1")
    assert (done.code, done.err.splitlines()[-1]) == (4, "error: the disk is full")
    assert sum(rollout.reward is not None for rollout in rollouts(stored, "a-Odd")) in (2, 3)
    done = stored.run("eval", "grade", "a", "--grader", "graders.py:Odd")
    assert done.out.splitlines()[0] == "run a-Odd: the rollouts of a, graded again: 4 graded"


def _full_disk_after_two():
    seen = []

    def on_end(rollout):
        seen.append(rollout)
        if len(seen) == 2:
            raise StoreError("the disk is full")

    return on_end


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["b", "--grader", "graders.py:Odd"], "there is no run 'b'. Known: "),
        (["a", "--grader", "graders.py"], "3 graders found"),
        (["a", "--grader", "graders.py:Even"], "grader 'Even' is not in 'graders.py'"),
        (["a", "--grader", "nope.py:Odd"], "no such entrypoint: 'nope.py'"),
        (["a", "--grader", "graders.py:Odd", "--name", "../x"], "'../x' cannot name a run"),
        (
            ["a", "--grader", "graders.py:Odd", "--name", "a"],
            "exists and was made with other inputs:\n  graded_from",
        ),
        (
            ["a", "--grader", "graders.py:Odd", "--dataset", "nope.jsonl"],
            "its dataset 'nope.jsonl' is not there",
        ),
        (["t", "--grader", "graders.py:Odd"], "run 't' is of kind 'train'; only evals are graded again"),
    ],
)
def test_what_cannot_be_graded_is_said_and_nothing_is_stored(stored, arguments, message):
    stored.store("t", {0: [1.0]}, kind="train")
    done = stored.run("eval", "grade", *arguments)
    assert (done.code, message in done.err) == (2, True), done.err
    assert len(stored.run("runs", "list").out.splitlines()) == 2


def test_another_grader_of_that_name_is_refused_naming_the_change(stored):
    stored.run("eval", "grade", "a", "--grader", "graders.py:Odd")
    Path("graders.py").write_text(GRADERS + "\n# changed\n")
    done = stored.run("eval", "grade", "a", "--grader", "graders.py:Odd")
    assert (done.code, "  grader: was 'graders.py:Odd " in done.err) == (2, True)


def test_a_grader_asks_the_judge_of_a_file_and_without_one_is_told_what_to_add(stored):
    (stored.root / "judge.toml").write_text(JUDGE)
    (stored.root / "judge.py").write_text(VERDICT)
    grade = ("eval", "grade", "a", "--grader", "graders.py:Judged")
    done = stored.run(*grade, "--name", "none", "--json")
    assert json.loads(done.out)["rollouts"] == {"grader_error": 4}
    assert "Add [judge] to the configuration" in rollouts(stored, "none")[0].reason
    done = stored.run(*grade, "--judge", "judge.toml", "--json")
    assert json.loads(done.out)["rollouts"] == {"graded": 4}, done.err
    assert [rollout.reward for rollout in rollouts(stored, "a-Judged")] == [1.0, 0.0, 1.0, 0.0]
    log = stored.root / ".osmosis" / "runs" / "a-Judged" / "judge.jsonl"
    assert len(log.read_text().splitlines()) == 4
    done = stored.run(*grade)
    assert (done.code, "judge: was 'script judge.py:verdict " in done.err) == (2, True)


def test_a_judge_that_does_not_answer_gives_no_reward_and_is_asked_again_by_the_same_command(stored):
    dead = JUDGE.replace("scripted", "gone").replace('script = "judge.py:verdict"', "retries = 0")
    (stored.root / "judge.toml").write_text(dead + 'base_url = "http://127.0.0.1:1/v1"\n')
    for _ in range(2):
        done = stored.run(
            "eval", "grade", "a", "--grader", "graders.py:Judged", "--judge", "judge.toml", "--json"
        )
        assert json.loads(done.out)["rollouts"] == {"provider_error": 4}
    graded = rollouts(stored, "a-Judged")
    assert {(rollout.reward, rollout.samples["main"].reward) for rollout in graded} == {(None, None)}
    assert {rollout.attempt for rollout in graded} == {0, 1}
    assert graded[0].reason.startswith("the grader's judge: the provider failed")
