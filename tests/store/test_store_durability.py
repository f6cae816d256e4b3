"""What was acknowledged is there: after kill -9, after a full disk, for any tree of turns."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_nouns import RUN, float32, rollout, turn

from osmosis_ai.errors import StoreError
from osmosis_ai.store import writer
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Sample, Status

ALL = RolloutFilter("run-1")

# --- any tree of turns

ids = st.lists(st.integers(0, 2**32 - 1), max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
messages = st.lists(st.dictionaries(st.sampled_from(["role", "content", "x"]), json_values), max_size=4)


@st.composite
def turn_trees(draw):
    """Up to eight turns of one rollout, each a new branch or the child of any earlier one."""
    turns = []
    for ordinal in range(draw(st.integers(0, 8))):
        parent = draw(st.none() | st.integers(0, ordinal - 1)) if ordinal else None
        prefix = turns[parent].prompt_ids + turns[parent].completion_ids if parent is not None else []
        completion = draw(ids)
        logprob = st.floats(max_value=0.0, width=32)
        turns.append(
            turn(
                ordinal=ordinal,
                parent=parent,
                branch_reason=None if parent is not None else draw(st.none() | st.just("edited history")),
                messages=draw(messages),
                tools=draw(messages),
                prompt_ids=prefix + draw(ids),
                completion_ids=completion,
                logprobs=draw(st.lists(logprob, min_size=len(completion), max_size=len(completion))),
                policy_version=draw(st.none() | st.integers(0, 2**40)),
            )
        )
    return turns


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turn_trees())
def test_any_tree_of_turns_comes_back_exactly(turns):
    async def round_trip(path):
        store = SqliteStore(path)
        await store.create_run(RUN)
        await store.start_rollout(rollout())
        for one in turns:
            await store.append_turn(one)
        (found,) = await store.rollouts(ALL)
        await store.close()
        return found.turns

    with tempfile.TemporaryDirectory() as folder:
        assert asyncio.run(round_trip(Path(folder) / "osmosis.db")) == turns


# --- kill -9

WRITER = """
import asyncio, os, random, sys
sys.path[:0] = [sys.argv[2]]
from store_nouns import rollout, turn
from osmosis_ai.store import writer
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Sample, Status

writer.Pace.is_quick = lambda self: random.random() < 0.5  # the loop's commits and the thread's, mixed
writer.LOG_PAGES = 200  # and the log moved often

def say(line):
    os.write(1, f"{line}\\n".encode())  # one call: a kill leaves a whole line or none

async def one(store, life, lane):
    for i in range(10_000):
        name = f"{life}-{lane}-{i}"
        await store.start_rollout(rollout(name))
        prompt = [lane, i]
        for ordinal in range(3):
            parent = ordinal - 1 if ordinal else None
            await store.append_turn(turn(rollout_id=name, ordinal=ordinal, parent=parent, prompt_ids=prompt))
            say(f"turn {name} {ordinal}")
            prompt = [*prompt, 7, 8, ordinal]
        assert await store.end_rollout(name, Status.GRADED, "", [Sample("main", reward=float(i))], 1.0)
        say(f"end {name} {i}")

async def life(store, number):
    say(f"resumed {await store.resume_run('run-1')}")
    await asyncio.gather(*(one(store, number, lane) for lane in range(4)))

# One interpreter, many lives: each line of input forks a child that writes until it is killed.
say("ready")
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        asyncio.run(life(SqliteStore(sys.argv[1]), line.strip()))
    say(f"pid {pid}")
    os.waitpid(pid, 0)
    say("dead")
"""


async def check_whole(path, acknowledged):
    """Everything acknowledged is there, once, and the file is sound. Returns how many turns are in it."""
    db = apsw.Connection(str(path))
    assert db.execute("PRAGMA integrity_check").get == "ok"
    db.close()
    store = SqliteStore(path)
    found = {one.rollout_id: one for one in await store.rollouts(ALL)}  # checks each turn's tokens
    for kind, name, number in acknowledged:
        if kind == "turn":
            assert found[name].turns[int(number)].ordinal == int(number)
        else:
            assert found[name].status is Status.GRADED
            assert found[name].reward == float(number)
            assert len(found[name].turns) == 3
    await store.close()
    return sum(len(one.turns) for one in found.values())


async def make_run(path):
    store = SqliteStore(path)
    await store.create_run(RUN)
    await store.close()


def live_and_die(lives, number, seconds):
    """One life: start it, let it write for some time, kill it. Returns the words of its acknowledgements."""
    lives.stdin.write(f"life{number}\n")
    lines = []
    while not {"pid", "resumed"} <= {line.split()[0] for line in lines}:
        lines.append(lives.stdout.readline())
        assert lines[-1] not in ("dead\n", ""), f"the writer could not open the store: {lines}"
    time.sleep(seconds)
    os.kill(next(int(line.split()[1]) for line in lines if line.startswith("pid")), signal.SIGKILL)
    while lines[-1] != "dead\n":
        lines.append(lives.stdout.readline())
    return [line.split() for line in lines if line.startswith(("turn", "end"))]


def test_what_was_acknowledged_survives_forty_kills(path):
    asyncio.run(make_run(path))
    command = [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent)]
    lives = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert lives.stdout.readline() == "ready\n"
    chance, acknowledged = random.Random(0), []
    for number in range(40):
        acknowledged += live_and_die(lives, number, chance.uniform(0.0, 0.08))
        if number % 8 == 7:
            turns = asyncio.run(check_whole(path, acknowledged))
    lives.stdin.close()
    lives.stdout.close()
    assert lives.wait() == 0
    assert turns >= sum(words[0] == "turn" for words in acknowledged) > 100


# --- a full disk


@pytest.fixture(params=["by the loop", "by the thread"])
def committed(request, monkeypatch):
    """Who waits for the disk."""
    by_loop = request.param == "by the loop"
    monkeypatch.setattr(writer.Pace, "is_quick", lambda self: by_loop)


async def fill(store, start=0):
    """Append large turns until the store refuses; returns how many it took."""
    for i in range(start, start + 500):
        try:
            await store.append_turn(turn(ordinal=i, prompt_ids=list(range(20_000))))
        except StoreError as error:
            return i, error
    raise AssertionError("the disk never was full")


@pytest.mark.usefixtures("committed")
async def test_a_full_database_says_so_keeps_what_it_has_and_goes_on_when_there_is_room(store, path):
    store._db.pragma("max_page_count", 300)  # SQLite then reports SQLITE_FULL as on a full disk
    taken, error = await fill(store)
    assert f"{path}: SQLite says 'database or disk is full' (FullError). Free space on the disk" in str(error)
    both = [store.append_turn(turn(ordinal=taken, prompt_ids=list(range(20_000)))) for _ in range(2)]
    results = await asyncio.gather(*both, return_exceptions=True)
    assert [type(result) for result in results] == [StoreError, StoreError]
    (found,) = await store.rollouts(ALL)
    assert len(found.turns) == taken > 3
    store._db.pragma("max_page_count", 100_000)
    await store.append_turn(turn(ordinal=taken, prompt_ids=list(range(20_000))))
    assert await store.end_rollout("r1", Status.GRADED, "", [Sample("main", reward=1.0)], 1.0)


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 4 MB, where this machine lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine mounts no tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.usefixtures("committed")
async def test_a_really_full_disk_fails_the_write_and_nothing_else(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2_000_000))
    path = small_disk / "osmosis.db"
    store = SqliteStore(path)
    await store.create_run(RUN)
    await store.start_rollout(rollout())
    taken, error = await fill(store)
    assert "database or disk is full" in str(error) or "disk I/O error" in str(error)
    ballast.unlink()
    await store.append_turn(turn(ordinal=taken, logprobs=[float32(-0.1), 0.0]))
    await store.close()
    store = SqliteStore(path)
    (found,) = await store.rollouts(ALL)
    assert len(found.turns) == taken + 1 > 4
    await store.close()


# --- many loops, one writer


@pytest.mark.usefixtures("committed")
def test_writes_of_several_event_loops_share_the_writer_and_none_is_forgotten(path):
    asyncio.run(make_run(path))
    store = SqliteStore(path)

    async def one_loop(number):
        for i in range(30):
            names = [f"{number}-{i}-{j}" for j in range(3)]
            await asyncio.gather(*(store.start_rollout(rollout(name)) for name in names))
            await asyncio.gather(*(store.append_turn(turn(rollout_id=name)) for name in names))
            with pytest.raises(StoreError, match="started already"):
                await store.start_rollout(rollout(names[0]))

    threads = [threading.Thread(target=asyncio.run, args=(one_loop(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = asyncio.run(store.rollouts(ALL))
    asyncio.run(store.close())
    assert len(found) == 4 * 30 * 3
    assert all(len(one.turns) == 1 for one in found)


@pytest.mark.usefixtures("committed")
async def test_a_write_waits_for_another_process_and_the_loop_does_not(store, path):
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.append_turn(turn()))
    beats = 0
    while beats < 20:  # the loop goes on
        await asyncio.sleep(0.005)
        beats += 1
    assert not writing.done()
    other.execute("COMMIT")
    other.close()
    await writing
    (found,) = await store.rollouts(ALL)
    assert len(found.turns) == 1


async def test_a_moment_of_another_process_costs_no_sleep_in_sqlite(store, path, monkeypatch):
    monkeypatch.setattr(writer, "GIVE_WAY_SECONDS", 60.0)  # the thread would sleep
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    both = [asyncio.create_task(store.start_rollout(rollout(name))) for name in ("r2", "r3")]
    await asyncio.sleep(0.05)
    assert not any(one.done() for one in both)
    other.execute("COMMIT")
    other.close()
    await asyncio.gather(*both)
    assert {one.rollout_id for one in await store.rollouts(ALL)} == {"r1", "r2", "r3"}


async def test_what_breaks_a_commit_off_fails_its_writes_and_holds_up_no_other(store, monkeypatch):
    class SecondCtrlC(BaseException):
        """As KeyboardInterrupt, which would end the test."""

    def broken(self, batch):
        raise SecondCtrlC

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    monkeypatch.setattr(writer.Pace, "is_quick", lambda self: True)
    with monkeypatch.context() as once:
        once.setattr(writer.Writer, "_commit", broken)
        with pytest.raises(StoreError, match="broken off by SecondCtrlC"):
            await store.append_turn(turn())
    await store.append_turn(turn())
    (found,) = await store.rollouts(ALL)
    assert len(found.turns) == 1


# --- who waits for the disk


def test_the_loop_waits_for_a_quick_disk_itself_and_leaves_a_slow_one_to_the_thread():
    pace = writer.Pace()
    for _ in range(1000):
        assert pace.is_quick()
        pace.took(0.0003)
    pace.took(0.005)  # one that hung is no slow disk
    assert pace.is_quick()
    pace.took(0.005)
    asked = [pace.is_quick() for _ in range(writer.COMMITS_ASIDE + 1)]
    assert asked == [False] * writer.COMMITS_ASIDE + [True]


@pytest.mark.usefixtures("committed")
async def test_the_log_is_moved_into_the_database_and_does_not_grow_for_ever(store, path, monkeypatch):
    monkeypatch.setattr(writer, "LOG_PAGES", 100)
    log = path.with_name(path.name + "-wal")
    sizes = []
    for ordinal in range(60):
        await store.append_turn(turn(ordinal=ordinal, prompt_ids=list(range(10_000))))
        sizes.append(log.stat().st_size)
    assert max(sizes) < 200 * 4096 < 60 * 40_000
    (found,) = await store.rollouts(ALL)
    assert [len(one.prompt_ids) for one in found.turns] == [10_000] * 60
