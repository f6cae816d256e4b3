"""What the Store protocol promises, of the SQLite store."""

import asyncio
import math
from dataclasses import fields, replace

import apsw
import pytest
from store_nouns import RUN, float32, rollout, turn

from osmosis_ai.errors import StoreError
from osmosis_ai.store.base import RolloutFilter, RunRecord, StepRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Sample, Status

ALL = RolloutFilter("run-1")


async def only(store):
    (found,) = await store.rollouts(ALL)
    return found


# --- runs


async def test_a_run_comes_back_as_it_was_created(store):
    assert await store.get_run("run-1") == RUN
    assert await store.get_run("other") is None


async def test_a_run_name_is_taken_once(store):
    with pytest.raises(StoreError, match=r"run 'run-1' exists already in .*osmosis\.db; choose another name"):
        await store.create_run(RUN)


async def test_a_finished_run_keeps_its_state_and_error(store):
    await store.finish_run("run-1", "failed", "no GPU")
    assert await store.get_run("run-1") == replace(RUN, state="failed", error="no GPU")
    with pytest.raises(StoreError, match="there is no run 'run-2'"):
        await store.finish_run("run-2", "done")


async def test_resuming_a_run_ends_what_its_dead_process_left_running(store):
    await store.start_rollout(rollout("r2"))
    await store.end_rollout("r2", Status.GRADED, "", [], 1.0)
    await store.finish_run("run-1", "interrupted")
    assert await store.resume_run("run-1") == 1
    r1, r2 = await store.rollouts(ALL)
    assert (r1.status, r1.reason) == (Status.INFRASTRUCTURE, "the run was stopped while it ran")
    assert r2.status is Status.GRADED
    assert (await store.get_run("run-1")).state == "running"
    assert await store.end_rollout("r1", Status.GRADED, "", [], 1.0) is False


async def test_runs_are_listed_newest_first_with_rewards_and_steps(store):
    await store.create_run(RunRecord("run-2", "eval", "done", 200.0, {}, {}))
    await store.end_rollout("r1", Status.GRADED, "", [Sample("a", reward=1.0), Sample("b", reward=0.0)], 1.0)
    await store.start_rollout(rollout("r2"))
    await store.end_rollout(
        "r2", Status.GRADED, "", [Sample("a", reward=1.0), Sample("b", reward=0.0, removed=True)], 1.0
    )
    await store.start_rollout(rollout("r3"))
    await store.end_rollout("r3", Status.GRADER_ERROR, "boom", [Sample("a", reward=0.0)], 1.0)
    await store.finish_step(StepRecord("run-1", 1, 1, "", {}, 5.0))
    newest, oldest = await store.list_runs()
    assert (newest.run.run_id, newest.mean_reward, newest.rollouts_by_status) == ("run-2", None, {})
    assert oldest.rollouts_by_status == {"graded": 2, "grader_error": 1}
    assert (oldest.mean_reward, oldest.last_step) == (0.75, 1)
    rewards = [found.reward for found in await store.rollouts(ALL)]
    assert rewards == [0.5, 1.0, None]


# --- turns


async def test_a_child_turn_is_stored_as_a_delta_and_restored_whole(store, path):
    child = turn(ordinal=1, parent=0, prompt_ids=[1, 2, 7, 8, 3, 4], completion_ids=[9], logprobs=[-1.5])
    await store.append_turn(turn())
    await store.append_turn(child)
    assert (await only(store)).turns == [turn(), child]
    stored = apsw.Connection(str(path)).execute("SELECT new_prompt_ids, completion_ids FROM turn").fetchall()
    assert [(bytes(p)[::4], bytes(c)[::4]) for p, c in stored] == [(b"\1\2", b"\7\x08"), (b"\3\4", b"\x09")]


async def test_a_turn_that_does_not_continue_its_parent_is_refused(store):
    await store.append_turn(turn())
    for prompt in ([1, 2, 7, 9, 3], [1, 2, 7], []):
        with pytest.raises(StoreError, match="do not start with the 4 tokens of turn 0"):
            await store.append_turn(turn(ordinal=1, parent=0, prompt_ids=prompt))
    with pytest.raises(StoreError, match="names turn 5 as its parent, which does not exist"):
        await store.append_turn(turn(ordinal=1, parent=5))
    with pytest.raises(StoreError, match="belongs to sample 'other' but its parent 0 to 'main'"):
        await store.append_turn(turn(ordinal=1, parent=0, sample_id="other", prompt_ids=[1, 2, 7, 8]))
    assert len((await only(store)).turns) == 1


async def test_ordinals_have_no_gap_and_no_duplicate(store):
    with pytest.raises(StoreError, match=r"turn 1 of rollout 'r1' cannot be appended: the next turn .* is 0"):
        await store.append_turn(turn(ordinal=1))
    await store.append_turn(turn())
    with pytest.raises(StoreError, match="the next turn of this rollout is 1"):
        await store.append_turn(turn())


async def test_a_turn_needs_a_rollout_that_runs(store):
    with pytest.raises(StoreError, match="the rollout was never started"):
        await store.append_turn(turn(rollout_id="nobody"))
    await store.end_rollout("r1", Status.CANCELLED, "", [], 0.0)
    with pytest.raises(StoreError, match=r"the rollout has ended \(cancelled\)"):
        await store.append_turn(turn())


async def test_logprobs_are_float32_and_come_back_bit_for_bit(store):
    values = [float32(-math.pi), -0.0, float32(-1e-40), float("-inf")]
    await store.append_turn(turn(completion_ids=[5] * 4, logprobs=values))
    (restored,) = (await only(store)).turns
    assert [value.hex() for value in restored.logprobs] == [value.hex() for value in values]
    with pytest.raises(StoreError, match=r"logprob 1 is -0\.1, which float32 cannot hold exactly"):
        await store.append_turn(turn(ordinal=1, logprobs=[-0.5, -0.1]))
    with pytest.raises(StoreError, match="logprob 0 is nan"):
        await store.append_turn(turn(ordinal=1, logprobs=[math.nan, -0.5]))


async def test_a_turn_whose_parts_do_not_fit_is_refused(store):
    with pytest.raises(StoreError, match="has 2 completion tokens but 1 logprobs"):
        await store.append_turn(turn(logprobs=[-0.5]))
    with pytest.raises(StoreError, match=r"token ids must be integers from 0 to 2\*\*32 - 1"):
        await store.append_turn(turn(prompt_ids=[-1]))
    with pytest.raises(StoreError, match="turn 0 of rollout 'r1' cannot be stored: not JSON"):
        await store.append_turn(turn(messages=[{"role": "user", "content": object()}]))


async def test_an_external_providers_turn_has_no_tokens(store):
    external = turn(
        prompt_ids=[],
        completion_ids=[],
        logprobs=[],
        policy_version=None,
        prompt_tokens=31,
        completion_tokens=5,
    )
    await store.append_turn(external)
    assert (await only(store)).turns == [external]


async def test_any_json_comes_back_as_it_was(store):
    odd = {
        "z": 1,
        "a": 2**80,
        "half": "\ud83d",
        "nul": "a\0b",
        "text": "日本 ✓",
        "x": [None, True, 0.1, math.inf],
    }
    await store.append_turn(turn(messages=[odd], sampling=odd))
    (restored,) = (await only(store)).turns
    assert restored.messages == [odd]
    assert restored.sampling == odd
    assert list(restored.messages[0]) == list(odd)  # the order of keys, which templates print


async def test_a_message_is_stored_once_however_often_it_is_sent(store, path):
    await store.append_turn(turn())
    await store.append_turn(turn(ordinal=1))
    await store.end_rollout("r1", Status.GRADED, "", [Sample("main", turn().messages, 1.0)], 1.0)
    db = apsw.Connection(str(path))
    assert db.execute("SELECT count(*) FROM message").get == 3
    assert db.execute("SELECT count(*) FROM tools").get == 1
    assert db.execute("SELECT count(*) FROM turn_message").get == 4


# --- the end of a rollout


async def test_a_rollout_ends_exactly_once(store):
    sample = Sample("main", [{"role": "user", "content": "hi"}], 0.5, False, {"calls": 2.0})
    assert await store.end_rollout("r1", Status.GRADED, "", [sample], 2.5) is True
    assert await store.end_rollout("r1", Status.CANCELLED, "late", [Sample("x", reward=9.0)], 9.0) is False
    ended = await only(store)
    assert (ended.status, ended.reason, ended.duration_seconds) == (Status.GRADED, "", 2.5)
    assert ended.samples == {"main": sample}


async def test_of_many_ends_at_once_one_wins(store):
    ends = [store.end_rollout("r1", Status.GRADED, f"{i}", [Sample(f"s{i}")], 0.0) for i in range(50)]
    assert sorted(await asyncio.gather(*ends)) == [False] * 49 + [True]
    assert len((await only(store)).samples) == 1


async def test_what_has_ended_can_be_superseded_and_then_counts_nowhere(store):
    await store.end_rollout("r1", Status.GRADED, "", [Sample("a", reward=1.0)], 1.0)
    await store.start_rollout(rollout("r2"))
    await store.end_rollout("r2", Status.GRADER_ERROR, "no judge", [], 1.0)
    await store.start_rollout(rollout("r3"))
    await store.start_rollout(rollout("r4"))
    await store.end_rollout("r4", Status.GRADED, "", [Sample("a", reward=0.0)], 1.0)
    assert await store.supersede(["r1", "r2", "r3", "r9"]) == 2
    assert await store.supersede(["r1"]) == 0
    assert [(r.status.value, r.reason) for r in await store.rollouts(ALL)] == [
        ("superseded", "ended as graded, then another took its place"),
        ("superseded", "ended as grader_error, then another took its place: no judge"),
        ("running", ""),
        ("graded", ""),
    ]
    [summary] = await store.list_runs()
    assert summary.rollouts_by_status == {"superseded": 2, "running": 1, "graded": 1}
    assert summary.mean_reward == 0.0
    assert [r.rollout_id for r in await store.rollouts(replace(ALL, statuses=[Status.GRADED]))] == ["r4"]


async def test_an_end_that_is_none_is_refused(store):
    with pytest.raises(StoreError, match="cannot end with status 'running'"):
        await store.end_rollout("r1", Status.RUNNING, "", [], 0.0)
    with pytest.raises(StoreError, match="there is no rollout 'r9'"):
        await store.end_rollout("r9", Status.GRADED, "", [], 0.0)
    with pytest.raises(StoreError, match="sample 'a' of rollout 'r1' has reward nan"):
        await store.end_rollout("r1", Status.GRADED, "", [Sample("a", reward=math.nan)], 0.0)
    with pytest.raises(StoreError, match="UNIQUE constraint failed"):
        await store.end_rollout("r1", Status.GRADED, "", [Sample("a"), Sample("a")], 0.0)
    assert (await only(store)).status is Status.RUNNING


async def test_a_reason_with_half_a_surrogate_pair_still_ends_the_rollout(store):
    assert await store.end_rollout("r1", Status.WORKFLOW_ERROR, "no file \ud800", [], 0.0)
    assert (await only(store)).reason == "no file \\ud800"


async def test_samples_keep_their_order_and_missing_reward(store):
    samples = [Sample("z", reward=1.0), Sample("a", reward=None), Sample("m", reward=0.0, removed=True)]
    await store.end_rollout("r1", Status.GRADED, "", samples, 0.0)
    assert list((await only(store)).samples.values()) == samples


async def test_every_field_of_a_sample_comes_back(store):
    sample = Sample("a", [{"role": "user", "content": "1 + 1?"}], 0.25, True, {"length": 2.0}, True)
    plain = Sample("b")
    assert all(getattr(sample, f.name) != getattr(plain, f.name) for f in fields(Sample))
    await store.end_rollout("r1", Status.GRADED, "", [sample, plain], 0.0)
    assert (await only(store)).samples == {"a": sample, "b": plain}


# --- reading


async def test_rollouts_are_filtered_and_in_order_of_their_start(store):
    await store.start_rollout(rollout("r0", started_at=0.5, step=2, row_index=9))
    await store.start_rollout(rollout("r2", started_at=2.5, step=2))
    await store.end_rollout("r2", Status.GRADED, "", [], 0.0)

    async def ids(**fields):
        return [found.rollout_id for found in await store.rollouts(RolloutFilter("run-1", **fields))]

    assert await ids() == ["r0", "r1", "r2"]
    assert await ids(step=2) == ["r0", "r2"]
    assert await ids(row_index=9) == ["r0"]
    assert await ids(statuses=[Status.RUNNING]) == ["r0", "r1"]
    assert await ids(rollout_ids=["r2", "r1"], step=2) == ["r2"]
    assert await store.rollouts(RolloutFilter("run-9")) == []


async def test_turns_can_be_left_out(store):
    await store.append_turn(turn())
    (found,) = await store.rollouts(ALL, turns=False)
    assert found == rollout()


async def test_a_rollout_starts_once_and_in_a_run_that_exists(store):
    with pytest.raises(StoreError, match="rollout 'r1' has been started already"):
        await store.start_rollout(rollout())
    with pytest.raises(StoreError, match="there is no run 'run-9'"):
        await store.start_rollout(rollout("r9", run_id="run-9"))
    with pytest.raises(StoreError, match="rollout 'r9' cannot start: it is graded"):
        await store.start_rollout(rollout("r9", status=Status.GRADED))


async def test_steps_come_back_in_order_and_a_step_done_again_replaces_its_record(store):
    await store.finish_step(StepRecord("run-1", 2, 2, "", {"reward": 0.5}, 2.0))
    await store.finish_step(StepRecord("run-1", 1, 1, "checkpoints/1", {"loss": 0.1}, 1.0))
    again = StepRecord("run-1", 2, 2, "checkpoints/2", {"reward": 0.6}, 3.0)
    await store.finish_step(again)
    assert [step.step for step in await store.steps("run-1")] == [1, 2]
    assert (await store.steps("run-1"))[1] == again


async def test_tokens_changed_behind_the_stores_back_are_noticed(store, path):
    await store.append_turn(turn())
    apsw.Connection(str(path)).execute("UPDATE turn SET completion_ids = x'0000000000000000'")
    with pytest.raises(StoreError, match="the tokens of turn 0 of rollout 'r1' are not those"):
        await store.rollouts(ALL)


async def test_deleting_a_run_by_hand_takes_its_rollouts_along(store, path):
    await store.append_turn(turn())
    db = apsw.Connection(str(path))
    db.pragma("foreign_keys", True)
    db.execute("DELETE FROM run")
    assert db.execute("SELECT (SELECT count(*) FROM rollout) + (SELECT count(*) FROM turn)").get == 0


async def test_reads_go_on_while_writes_do_and_see_whole_writes_only(store):
    async def write():
        for i in range(80):
            await store.start_rollout(rollout(f"w{i:03}", started_at=10.0 + i))
            await store.append_turn(turn(rollout_id=f"w{i:03}"))
            samples = [Sample("a", reward=1.0), Sample("b", reward=1.0)]
            await store.end_rollout(f"w{i:03}", Status.GRADED, "", samples, 0.0)

    writing, reads = asyncio.create_task(write()), 0
    while not writing.done():
        for found in await store.rollouts(RolloutFilter("run-1", statuses=[Status.GRADED])):
            assert (len(found.turns), len(found.samples)) == (1, 2)
        reads += 1
    await writing
    assert reads > 3


# --- life


async def test_a_closed_store_says_so_and_keeps_everything(store, path):
    await store.append_turn(turn())
    await store.close()
    await store.close()
    for use in (store.get_run("run-1"), store.append_turn(turn(ordinal=1))):
        with pytest.raises(StoreError, match="the store is closed"):
            await use
    again = SqliteStore(path)
    assert (await only(again)).turns == [turn()]
    await again.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["osmosis.db"]  # the log was folded in


async def test_a_waiter_that_is_cancelled_does_not_take_the_write_with_it(store):
    waiting = asyncio.create_task(store.append_turn(turn()))
    await asyncio.sleep(0)
    waiting.cancel()
    await store.append_turn(turn(ordinal=1))
    assert len((await only(store)).turns) == 2


async def test_one_bad_write_among_many_fails_alone(store):
    writes = [store.start_rollout(rollout(f"r{i}")) for i in (2, 3)]
    writes.append(store.append_turn(turn(ordinal=9, messages=[{"role": "user", "content": "new"}])))
    writes.append(store.append_turn(turn(messages=[{"role": "user", "content": "new"}])))
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), type(None), StoreError, type(None)]
    assert (await store.rollouts(ALL))[0].turns[0].messages == [{"role": "user", "content": "new"}]
