"""`osmosis runs delete` and `prune`: what goes is gone, what stays is whole."""

import json
import sqlite3
import time
from contextlib import closing

import pytest

from osmosis_ai.controller.opening import run_id_of
from osmosis_ai.errors import UsageError
from osmosis_ai.store.base import RunRecord, RunSummary
from osmosis_ai.store.retention import Retention, delete_runs
from osmosis_ai.store.schema import open_writable
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.store.workspace import Workspace, newest_number


@pytest.fixture
def stored(bench):
    for run_id in ("a", "b"):
        bench.store(run_id, {0: [1.0], 1: [0.0]})
        folder = bench.root / ".osmosis" / "runs" / run_id
        folder.mkdir(parents=True)
        (folder / "rollout-server.log").write_text("...")
    return bench


def count(bench, table):
    with closing(sqlite3.connect(bench.root / ".osmosis" / "osmosis.db")) as db:
        return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_a_deleted_run_takes_along_what_it_alone_has_used(stored):
    before = stored.run("runs", "show", "b", "--row", "1").out
    messages = count(stored, "message")
    done = stored.run("runs", "delete", "a", "--yes", "--json")
    assert done.code == 0
    assert json.loads(done.out)["runs"] == ["a"]
    assert (count(stored, "turn"), count(stored, "sample"), count(stored, "rollout")) == (4, 2, 2)
    assert messages - count(stored, "message") == 2, "its two last answers; prompts and calls are b's too"
    assert not (stored.root / ".osmosis" / "runs" / "a").exists()
    assert stored.run("runs", "show", "b", "--row", "1").out == before


def test_nothing_is_deleted_while_another_process_has_the_database_open(stored):
    other = open_writable(stored.root / ".osmosis" / "osmosis.db")
    list(other.execute("SELECT count(*) FROM run"))
    done = stored.run("runs", "delete", "a", "--yes")
    assert done.code == 4
    assert "is open in another process: a run, or a look at one. Nothing was deleted" in done.err
    other.close()
    assert count(stored, "rollout") == 4


def test_without_a_terminal_or_yes_nothing_is_deleted(stored):
    done = stored.run("runs", "prune", "--keep", "0")
    assert (done.code, done.err) == (
        2, "error: 2 runs would be deleted for ever: say --yes, or look with --dry-run\n",
    )  # fmt: skip
    assert stored.run("runs", "prune", "--keep", "0", "--dry-run").out == "would delete a\nwould delete b\n"
    assert stored.run("runs", "prune", "--keep", "1", "--dry-run").out == "nothing to delete\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["delete", "c"], "there is no run 'c'. Known: a, b."),
        (["prune"], "say which runs go: --older-than 30d, or --keep 3, or both"),
        (["prune", "--older-than", "x"], "--older-than 'x': write a number and d, w, m or y, as in 30d"),
    ],
)
def test_what_cannot_be_is_refused(stored, arguments, message):
    done = stored.run("runs", *arguments)
    assert (done.code, done.err) == (2, f"error: {message}\n")


@pytest.mark.parametrize(
    ("retention", "gone"),
    [
        (Retention(days=30), ["a"]),
        (Retention(keep=1), ["a", "a-2"]),
        (Retention(days=30, keep=1), ["a"]),
        (Retention(days=10, keep=2), ["a"]),
        (Retention(keep=0), ["a", "a-2", "b", "a-3"]),
    ],
)
def test_runs_go_by_age_and_by_number_of_a_name(retention, gone):
    ages = {"a": 40, "a-2": 20, "b": 5, "a-3": 1}
    now = time.time()
    runs = [
        RunSummary(RunRecord(run_id, "eval", "done", now - age * 86_400, {}, {"run": {"name": run_id[0]}}))
        for run_id, age in ages.items()
    ]
    assert retention.chosen(runs, now) == gone


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        ({}, 0),
        ({"a": "a"}, 1),
        ({"a": "a", "a-2": "a"}, 2),
        ({"a-3": "a", "b-7": "b"}, 3),
        ({"a": "a", "a-2026": "a-2026"}, 1),
        ({"a": "a", "a-Lenient": "a"}, 1),
    ],
)
def test_the_newest_run_of_a_name_is_found_across_gaps(names, newest):
    assert newest_number("a", names) == newest


def test_a_name_that_is_a_number_is_no_number_of_a_run():
    assert newest_number("7", {"7": "7"}) == 1
    assert newest_number("7", {"7": "7", "7-2": "7"}) == 2


async def test_a_name_goes_on_with_its_newest_run_after_older_ones_were_deleted(tmp_path):
    store = SqliteStore(tmp_path / "osmosis.db")
    for run_id in ("a", "a-2", "a-3"):
        await store.create_run(RunRecord(run_id, "eval", "done", 1.0, {}, {"run": {"name": "a"}}))
    await store.close()
    delete_runs(Workspace(tmp_path), ["a", "a-2"])
    store = SqliteStore(tmp_path / "osmosis.db")
    assert await run_id_of(store, "a", fresh=False) == "a-3"
    assert await run_id_of(store, "a", fresh=True) == "a-4"
    await store.close()


async def test_the_policy_of_a_name_is_its_newest_runs_whichever_others_were_deleted(tmp_path):
    workspace = Workspace(tmp_path)
    first = made(workspace, "a")
    assert workspace.policy_folder("run:a", tmp_path) == first, "without a database, too"
    store = SqliteStore(workspace.database)
    for run_id in ("a", "a-2", "a-3", "a-4", "a-2026"):
        named = "a-2026" if run_id == "a-2026" else "a"
        await store.create_run(RunRecord(run_id, "train", "done", 1.0, {}, {"run": {"name": named}}))
    await store.close()
    learnt = {
        run_id: made(workspace, run_id) for run_id in ("a-2", "a-3", "a-2026")
    }  # a-4 has not come so far
    delete_runs(workspace, ["a-2"])
    assert workspace.policy_folder("run:a", tmp_path) == learnt["a-3"]
    assert workspace.policy_folder("run:a-2026", tmp_path) == learnt["a-2026"]
    with pytest.raises(UsageError, match="Has the run 'b' been trained to its end"):
        workspace.policy_folder("run:b", tmp_path)


def made(workspace, run_id):
    folder = workspace.run_folder(run_id) / "policy"
    folder.mkdir(parents=True)
    return folder
