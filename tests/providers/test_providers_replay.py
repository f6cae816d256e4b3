"""Which recorded turn answers a call."""

import json

import pytest

from osmosis_ai.errors import ProviderError
from osmosis_ai.providers.base import ProviderRequest
from osmosis_ai.providers.replay import ReplayProvider
from osmosis_ai.types import Rollout, Turn


def recorded(*turns, member=0, attempt=0):
    """A rollout whose n-th turn has (question, answer, seed, policy version)."""
    rollout_id = f"run.r0.m{member}.a{attempt}"
    rollout = Rollout(rollout_id, "run", row_index=0, group_id="r0", member=member, attempt=attempt)
    for ordinal, (question, answer, seed, version) in enumerate(turns):
        fields = dict.fromkeys(Turn.__dataclass_fields__) | {
            "rollout_id": rollout_id,
            "ordinal": ordinal,
            "messages": [{"role": "user", "content": question}],
            "tools": [],
            "response": {"role": "assistant", "content": answer},
            "finish_reason": "stop",
            "policy_version": version,
            "sampling": {"temperature": 1.0, "seed": seed, **({"top_k": 0} if version is not None else {})},
        }
        rollout.turns.append(Turn(**fields))
    return rollout


async def ask(provider, question, seed, on_text=None, **params):
    messages = [{"role": "user", "content": question}]
    request = ProviderRequest(messages, [], {"temperature": 1.0, **params}, seed, canonical=messages)
    return (await provider.complete(request, on_text)).message["content"]


async def test_equal_calls_of_different_places_get_the_answers_of_their_places():
    provider = ReplayProvider(
        [recorded(("2 + 2?", "5", 70, None), member=1), recorded(("2 + 2?", "4", 60, None))], "run"
    )
    assert [await ask(provider, "2 + 2?", seed) for seed in (60, 70, 60)] == ["4", "5", "4"]


async def test_equal_calls_with_the_agents_own_seed_get_their_answers_in_order_and_once():
    provider = ReplayProvider([recorded(("hi", "a", 1, None), ("hi", "b", 1, None))], "run")
    assert [await ask(provider, "hi", 1) for _ in range(2)] == ["a", "b"]
    with pytest.raises(ProviderError, match="this call was made 2 times then, and is made once more now"):
        await ask(provider, "hi", 1)


async def test_a_run_with_another_seed_is_answered_by_what_is_asked():
    provider = ReplayProvider([recorded(("one", "1", 7, None), ("two", "2", 8, None))], "run")
    assert [await ask(provider, text, 99) for text in ("two", "one")] == ["2", "1"]


async def test_a_call_that_failed_then_and_was_repeated_by_the_agent_does_not_shift_the_answers():
    rollout = recorded(("first", "1", 11, None), ("second", "2", 12, None))  # the call with seed 10 failed
    provider = ReplayProvider([rollout], "run")
    assert [await ask(provider, text, seed) for text, seed in (("first", 10), ("second", 11))] == ["1", "2"]


async def test_the_last_attempt_at_a_place_is_replayed():
    attempts = [recorded(("hi", "good", 7, None), attempt=1), recorded(("hi", "bad", 7, None), attempt=0)]
    assert await ask(ReplayProvider(attempts, "run"), "hi", 7) == "good"


async def test_what_a_policy_said_is_replayed_without_its_own_parameters():
    provider = ReplayProvider([recorded(("hi", "ho", 7, 3))], "run")
    assert await ask(provider, "hi", 7, max_tokens=64) == "ho"


async def test_text_is_streamed_in_pieces():
    pieces = []
    provider = ReplayProvider([recorded(("hi", " two words ", 7, None))], "run")
    await ask(provider, "hi", 7, pieces.append)
    assert pieces == [" two", " words", " "]


async def test_a_stream_is_handed_on_in_the_pieces_that_it_came_in():
    async def bytes_of(rollout_id):
        chunks = [json.dumps({"choices": [{"delta": {"content": text}}]}) for text in ("tw", "o words")]
        return {0: "".join([": ping\n\n", *(f"data: {chunk}\n\n" for chunk in chunks)]).encode()}

    pieces = []
    provider = ReplayProvider([recorded(("hi", "two words", 7, None))], "run", bytes_of)
    await ask(provider, "hi", 7, pieces.append)
    assert pieces == ["tw", "o words"]


async def test_another_question_at_the_same_place_is_shown_beside_the_recorded_one():
    provider = ReplayProvider([recorded(("2 + 2?", "4", 7, None))], "run")
    with pytest.raises(ProviderError) as failed:
        await ask(provider, "2 + 3?", 7)
    assert str(failed.value) == (
        "the replay of run has no answer: it differs from turn 0 of rollout run.r0.m0.a0: messages[0] was "
        '{"content": "2 + 2?", "role": "user"}, is {"content": "2 + 3?", "role": "user"}'
    )
