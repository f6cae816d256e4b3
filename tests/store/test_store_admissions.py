"""What a gateway that is started again finds."""

import pytest
from store_nouns import rollout, turn

from osmosis_ai.errors import StoreError
from osmosis_ai.store.base import AdmissionRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Status

R1 = AdmissionRecord("r1", b"digest", "gateway", {"seed": 7})


async def test_an_admission_is_found_by_its_key_and_by_its_rollout(store):
    await store.admissions.add(R1)
    assert await store.admissions.by_key(b"digest") == await store.admissions.by_rollout("r1") == R1
    assert await store.admissions.by_key(b"another") is None


async def test_a_rollout_is_admitted_once_and_only_when_it_was_started(store):
    await store.admissions.add(R1)
    with pytest.raises(StoreError, match="'r1' has been admitted already, or was never started"):
        await store.admissions.add(R1)
    with pytest.raises(StoreError, match="'r2' has been admitted already, or was never started"):
        await store.admissions.add(AdmissionRecord("r2", b"other", "gateway", {}))
    with pytest.raises(StoreError, match="rollout 'r2' was not admitted"):
        await store.admissions.seal("r2")


async def test_the_first_tools_hold_and_the_end_of_the_rollout_seals_it(store):
    await store.start_rollout(rollout("r2"))
    await store.admissions.add(R1)
    await store.admissions.add(AdmissionRecord("r2", b"other", "gateway", {}))
    for tools in ([{"type": "function"}], []):
        await store.admissions.offer_tools("r1", tools)
    await store.admissions.seal("r1")
    await store.end_rollout("r2", Status.INFRASTRUCTURE, "", [], 0.0)
    first, second = [await store.admissions.by_rollout(name) for name in ("r1", "r2")]
    assert (first.tools, first.sealed) == ([{"type": "function"}], True)
    assert (second.tools, second.sealed) == (None, True)


async def test_each_turn_comes_back_with_what_was_noted_of_its_call(store):
    other = SqliteStore(store.path)  # as another process would
    await store.append_turn(turn(), '{"id":"c1"}')
    await other.append_turn(turn(ordinal=1))
    assert await store.admissions.answered("r1") == [(turn(), {"id": "c1"}), (turn(ordinal=1), None)]
    assert await store.admissions.answered("r2") == []
    await other.close()
