"""Which files the store opens, how it brings old ones up to date, and the lock of a run."""

import os
import subprocess
import sys
import time

import apsw
import pytest
from store_nouns import RUN, rollout

from osmosis_ai.errors import RunLockedError, StoreError
from osmosis_ai.store import schema
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.lock import RunLock
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Sample, Status


async def test_a_new_database_has_todays_version_and_the_durable_settings(store):
    db = store._db
    assert db.pragma("user_version") == len(schema.MIGRATIONS) == 5
    assert (db.pragma("journal_mode"), db.pragma("synchronous"), db.pragma("foreign_keys")) == ("wal", 2, 1)


def test_sqlite_is_the_bundled_one_and_recent_enough(path, monkeypatch):
    assert apsw.using_amalgamation
    monkeypatch.setattr(schema, "OLDEST_SQLITE", (99, 0, 0))
    with pytest.raises(StoreError, match=r"at least 99\.0\.0 is needed. Install apsw from its wheel"):
        SqliteStore(path)


def test_migrations_run_in_order_once_and_all_or_none(path):
    scripts = ["CREATE TABLE a (x); INSERT INTO a VALUES (1);", "ALTER TABLE a ADD COLUMN y DEFAULT 5"]
    db = apsw.Connection(str(path))
    schema.migrate(db, path, scripts[:1])
    with pytest.raises(apsw.SQLError, match="no such table: b"):
        schema.migrate(db, path, [*scripts, "DROP TABLE b"])
    assert db.pragma("user_version") == 1
    assert db.execute("SELECT * FROM a").fetchall() == [(1,)]
    for _ in range(2):
        schema.migrate(db, path, scripts)
    assert db.pragma("user_version") == 2
    assert db.execute("SELECT * FROM a").fetchall() == [(1, 5)]


async def test_a_database_of_version_1_keeps_its_samples_and_takes_frozen_ones(path):
    db = apsw.Connection(str(path))
    schema.migrate(db, path, schema._scripts()[:1])
    db.execute("INSERT INTO run VALUES ('run-1', 'train', 'running', 100.0, '{}', '{}', '')")
    db.execute("INSERT INTO rollout VALUES ('r0', 'run-1', 4, 'g1', 0, 0, 1, 'graded', '', 1.0, 2.0)")
    db.execute("INSERT INTO sample VALUES ('r0', 'old', 0, '[]', 0.5, 0, '{}')")
    db.close()
    store = SqliteStore(path)
    await store.start_rollout(rollout())
    await store.end_rollout("r1", Status.GRADED, "", [Sample("new", reward=1.0, frozen=True)], 0.0)
    r0, r1 = await store.rollouts(RolloutFilter("run-1"))
    assert r0.samples == {"old": Sample("old", reward=0.5)}
    assert r1.samples == {"new": Sample("new", reward=1.0, frozen=True)}
    await store.close()


async def test_a_database_of_a_newer_version_is_refused(path):
    await SqliteStore(path).close()
    apsw.Connection(str(path)).pragma("user_version", 7)
    with pytest.raises(StoreError, match=r"newer Osmosis \(schema version 7, known here up to 5\). Upgrade"):
        SqliteStore(path)


def test_another_programs_database_is_refused(path):
    apsw.Connection(str(path)).execute("CREATE TABLE bookmarks (url)")
    with pytest.raises(StoreError, match="is a SQLite database of another program"):
        SqliteStore(path)


def test_a_file_that_is_no_database_is_refused(path):
    path.write_text("hello " * 1000)
    with pytest.raises(
        StoreError, match=r"osmosis\.db: SQLite says 'file is not a database' \(NotADBError\)"
    ):
        SqliteStore(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file cannot be made: .* Choose a folder that may be written"):
        SqliteStore(tmp_path / "file" / "osmosis.db")


async def test_two_stores_on_one_file_see_each_others_writes(store, path):
    other = SqliteStore(path)
    assert await other.get_run("run-1") == RUN
    await other.finish_run("run-1", "done")
    assert (await store.get_run("run-1")).state == "done"
    await other.close()


# --- the lock of a run

HOLD = """
import sys, time
from pathlib import Path
from osmosis_ai.store.lock import RunLock
RunLock(Path(sys.argv[1])).acquire()
print("locked", flush=True)
time.sleep(60)
"""


def test_a_second_process_on_a_run_is_told_who_holds_it_until_that_process_dies(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(RunLockedError) as caught:
        RunLock(tmp_path).acquire()
    assert f"process {holder.pid} works on the run in {tmp_path} (it holds {tmp_path}/lock)" in str(
        caught.value
    )
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with RunLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    assert (tmp_path / "lock").read_text() == ""


def test_a_file_in_the_place_of_a_run_s_folder_is_named(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").write_text("")
    with pytest.raises(StoreError, match=r"runs/a cannot be made: .* Move that file away, or give this run"):
        RunLock(tmp_path / "runs" / "a").acquire()
    with pytest.raises(StoreError, match=r"no run can be kept in .*/runs/a/b: .* \(--workspace\)"):
        RunLock(tmp_path / "runs" / "a" / "b").acquire()


def test_a_program_that_the_holder_started_does_not_keep_the_lock(tmp_path):
    lock = RunLock(tmp_path / "new-folder")
    lock.acquire()
    with pytest.raises(RunLockedError, match=f"process {os.getpid()} "):
        RunLock(tmp_path / "new-folder").acquire()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    time.sleep(0.05)
    lock.release()
    lock.release()
    with RunLock(tmp_path / "new-folder"):
        pass
    child.kill()
    child.wait()
