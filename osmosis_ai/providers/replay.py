"""A recorded run as a model: each call gets the answer that the same call got then, without a network."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from osmosis_ai.errors import ProviderError
from osmosis_ai.providers.base import OnText, ProviderAnswer, ProviderRequest, ProviderState
from osmosis_ai.providers.streamed import StreamedAnswer
from osmosis_ai.types import Rollout, Turn

FACTS = frozenset({"seed", "cached_tokens"})  # of `Turn.sampling`, which no call has among its parameters
POLICY_PARAMS = frozenset({"temperature", "top_p"})  # what a policy's turn keeps as it was asked for
SHOWN_CHARS = 120  # of a value that differs
_WORDS = re.compile(r"\s*\S+|\s+$")  # with the blanks before them, or those at the end

BytesOf = Callable[[str], Awaitable[Mapping[int, bytes]]]


@dataclass(slots=True)
class _Recorded:
    """A turn, and how often it has been the answer."""

    turn: Turn  # without token lists
    asked: bytes  # digest of messages, tools and parameters
    given: int = 0


class ReplayProvider:
    """Answers from the turns of `rollouts`: message, finish reason, usage and model name as they were.

    A call is found by its seed, which stands for its place: run seed, row, attempt, sample and the number of
    the call. Messages, tools and parameters must be those of the recorded call; a difference is an error that
    names it. A rollout that is tried again is answered again.

    Calls that share a seed, because the agent itself gives one, and calls whose seed is not recorded, because
    the run has another seed, are found by messages, tools and parameters alone: each recorded answer is given
    once then, in the recorded order.

    Of rollouts that were tried again the last attempt counts.

    `bytes_of` gives, for a rollout id, the bodies of the endpoint's answers by ordinal, where they are kept:
    they are recorded anew, and a stream is handed on in the pieces that it came in.
    """

    def __init__(self, rollouts: Iterable[Rollout], name: str, bytes_of: BytesOf | None = None) -> None:
        self._name = name
        self._bytes_of = bytes_of
        self._by_seed: dict[int, list[_Recorded]] = {}
        self._by_call: dict[bytes, list[_Recorded]] = {}
        for turn in _counted_turns(rollouts):
            bare = replace(turn, prompt_ids=[], completion_ids=[], logprobs=[])
            recorded = _Recorded(bare, _digest(turn.messages, turn.tools, _params_of(turn)))
            self._by_seed.setdefault(turn.sampling.get("seed", -1), []).append(recorded)
            self._by_call.setdefault(recorded.asked, []).append(recorded)

    async def complete(self, request: ProviderRequest, on_text: OnText | None = None) -> ProviderAnswer:
        recorded = self._find(request)
        recorded.given += 1
        turn = recorded.turn
        bodies = {} if self._bytes_of is None else await self._bytes_of(turn.rollout_id)
        native = bodies.get(turn.ordinal, b"")
        if on_text is not None:
            for piece in _pieces(native, turn):
                on_text(piece)
                await asyncio.sleep(0)
        return ProviderAnswer(
            message=copy.deepcopy(turn.response),
            finish_reason=turn.finish_reason,
            prompt_tokens=turn.prompt_tokens,
            completion_tokens=turn.completion_tokens,
            model=turn.model,
            cached_tokens=turn.sampling.get("cached_tokens", 0),
            native=native,
        )

    def state(self) -> ProviderState:
        """A file is never busy and never down."""
        return ProviderState()

    async def close(self) -> None:
        """Nothing to drop."""

    def _find(self, request: ProviderRequest) -> _Recorded:
        of_seed = self._by_seed.get(request.seed, [])
        same = [recorded for recorded in of_seed if recorded.asked == _asked(request, recorded.turn)]
        if len(same) == 1:
            return same[0]
        if not same:
            same = list(self._elsewhere(request, of_seed))
        fresh = [recorded for recorded in same if not recorded.given]
        if fresh:
            return fresh[0]
        raise ProviderError(
            f"the replay of {self._name} has no answer: {self._why(request, of_seed, same)}", retryable=False
        )

    def _elsewhere(self, request: ProviderRequest, of_seed: list[_Recorded]) -> Iterator[_Recorded]:
        """The same call under another seed; when this seed is recorded, in that rollout only.

        An agent that repeats a call that failed then has another number of calls now.
        """
        rollout_ids = {recorded.turn.rollout_id for recorded in of_seed}
        for digest in {_digest(request.canonical, request.tools, params) for params in _both(request)}:
            for recorded in self._by_call.get(digest, []):
                if not rollout_ids or recorded.turn.rollout_id in rollout_ids:
                    yield recorded

    def _why(self, request: ProviderRequest, of_seed: list[_Recorded], same: list[_Recorded]) -> str:
        if same:
            times = "once" if len(same) == 1 else f"{len(same)} times"
            return f"this call was made {times} then, and is made once more now"
        if not of_seed:
            return (
                "no call of this place (run seed, row, attempt, sample, number of the call) was recorded, "
                "and no call with these messages, tools and parameters"
            )
        turn = of_seed[0].turn
        return (
            f"it differs from turn {turn.ordinal} of rollout {turn.rollout_id}: {_difference(turn, request)}"
        )


def _pieces(native: bytes, turn: Turn) -> list[str]:
    """The text as it was streamed; word by word where that is not kept."""
    pieces: list[str] = []
    if b"\ndata:" in b"\n" + native:
        StreamedAnswer(pieces.append).feed(native)
    content = turn.response.get("content")
    return pieces or (_WORDS.findall(content) if isinstance(content, str) else [])


def _counted_turns(rollouts: Iterable[Rollout]) -> Iterator[Turn]:
    last: dict[tuple[int, str, int], Rollout] = {}
    for rollout in rollouts:
        place = (rollout.step, rollout.group_id, rollout.member)
        if place not in last or rollout.attempt > last[place].attempt:
            last[place] = rollout
    for rollout in sorted(last.values(), key=lambda r: (r.step, r.row_index, r.group_id, r.member)):
        yield from rollout.turns


def _params_of(turn: Turn) -> dict[str, Any]:
    """The parameters of the call; of the policy's those that are kept as they were asked for."""
    if turn.policy_version is not None:
        return {key: value for key, value in turn.sampling.items() if key in POLICY_PARAMS}
    return {key: value for key, value in turn.sampling.items() if key not in FACTS}


def _both(request: ProviderRequest) -> Iterator[dict[str, Any]]:
    """The parameters of the request as a provider's turn and as a policy's would have them."""
    yield {key: value for key, value in request.params.items() if key not in FACTS}
    yield {key: value for key, value in request.params.items() if key in POLICY_PARAMS}


def _asked(request: ProviderRequest, turn: Turn) -> bytes:
    as_provider, as_policy = _both(request)
    params = as_provider if turn.policy_version is None else as_policy
    return _digest(request.canonical, request.tools, params)


def _digest(messages: Iterable[Any], tools: Iterable[Any], params: Mapping[str, Any]) -> bytes:
    return blake2b(_json([list(messages), list(tools), dict(params)]).encode(), digest_size=16).digest()


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _difference(turn: Turn, request: ProviderRequest) -> str:
    """The first thing that is not as it was, with both values."""
    for index, (was, is_now) in enumerate(zip(turn.messages, request.canonical, strict=False)):
        if _json(was) != _json(is_now):
            return f"messages[{index}] was {_shown(was)}, is {_shown(is_now)}"
    if len(turn.messages) != len(request.canonical):
        return f"it had {len(turn.messages)} messages, now {len(request.canonical)}"
    if _json(turn.tools) != _json(list(request.tools)):
        return f"tools were {_shown(turn.tools)}, are {_shown(list(request.tools))}"
    was_params, params = _params_of(turn), next(_both(request))
    for key in sorted(was_params.keys() | params.keys()):
        if _json(was_params.get(key)) != _json(params.get(key)):
            return f"{key} was {_shown(was_params.get(key))}, is {_shown(params.get(key))}"
    return "nothing that is recorded"


def _shown(value: Any) -> str:
    text = _json(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + " ..."
