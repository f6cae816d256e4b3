"""One rollout while it runs: its trees, its turns in order, and what became of its calls."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import orjson

from osmosis_ai.errors import MODEL_REFUSALS
from osmosis_ai.gateway.budget import DOLLARS_SPENT, TOKENS_SPENT, Budget
from osmosis_ai.gateway.call import Answer, ModelCall, Refusal, Reply, SamplingDefaults
from osmosis_ai.gateway.tree import ConversationTree, Placement
from osmosis_ai.providers.prices import Usage, usage_of
from osmosis_ai.store.base import Native, TurnStore
from osmosis_ai.types import Message, ToolSchema, Turn

_WORDS = {  # refusal code -> what the call did, for a person
    "invalid_api_key": "came with a wrong key",
    "missing_api_key": "came without a key",
    "wrong_rollout": "named another rollout than its key's",
    "rollout_ended": "came after the rollout had ended",
    "turn_limit_reached": "came after the last turn that the rollout may take",
    TOKENS_SPENT: "came after the rollout's token budget was spent",
    DOLLARS_SPENT: "came after the rollout's dollars were spent",
}


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A call that the engine, the provider or the store could not serve."""

    kind: str  # "engine", "provider", "store", "gateway"; "model" when the model itself refused the call
    message: str


@dataclass(slots=True)
class CallCounts:
    """What became of the calls of one rollout."""

    answered: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # error code -> calls
    latest_refusals: dict[str, str] = field(default_factory=dict)  # error code -> message
    failed: int = 0  # the engine, the provider or the store could not
    abandoned: int = 0  # the client went away first, or the rollout ended
    failures: dict[str, CallFailure] = field(default_factory=dict)  # sample id -> latest, until one succeeds
    restarts: int = 0  # of the gateway while the rollout was open: its calls may have broken

    @property
    def failure(self) -> CallFailure | None:
        """The latest failure that no later answer of the same sample made good."""
        return next((f for f in reversed(self.failures.values()) if f.kind != "model"), None)

    @property
    def model_refusal(self) -> CallFailure | None:
        """The same of what the model refused: an agent may well go on without it, or end for it."""
        return next((f for f in reversed(self.failures.values()) if f.kind == "model"), None)

    @property
    def over_budget(self) -> str | None:
        """The refusal of a call for which there was no budget left; None: there always was."""
        spent = (self.latest_refusals.get(code) for code in (TOKENS_SPENT, DOLLARS_SPENT))
        return next((message for message in spent if message is not None), None)

    def explain(self) -> str:
        """For messages: "1 call came with a wrong key; 2 calls failed: the engine failed: out of memory"."""
        parts = []
        for code, count in self.refused.items():
            words = _WORDS.get(code) or f"got the answer: {self.latest_refusals[code]}"
            parts.append(f"{_calls(count)} {words}")
        if self.failed:
            failure = self.failure
            parts.append(f"{_calls(self.failed)} failed" + (f": {failure.message}" if failure else ""))
        if self.abandoned:
            parts.append(f"{_calls(self.abandoned)} {'was' if self.abandoned == 1 else 'were'} given up")
        if self.restarts:
            parts.append("the gateway was started again meanwhile")
        return "; ".join(parts) or "no call came"


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


@dataclass(eq=False, slots=True)
class Work:
    """What is being done for one call: answering it, then recording the answers."""

    turns: int  # that it will add and has not added yet
    recording: bool = False  # not stopped any more: a turn is recorded whole or not at all
    task: asyncio.Task[list[Reply]] = field(init=False)


_NO_IDS: array[int] = array("I")
_NO_LOGPROBS: array[float] = array("d")


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """A recorded turn without its lists of tokens, which a long rollout could not afford to keep.

    A list takes 8 bytes for each token of each prompt, again and again as the conversation grows, and the
    garbage collector looks through all of them. Here are 4 bytes for each token that the turn adds.
    """

    turn: Turn  # its three token lists are empty
    new_ids: array[int]  # of prompt and completion, behind the parent's tokens
    logprobs: array[float]  # of the completion: as many as it has tokens
    num_tokens: int  # of the whole prompt and completion

    @classmethod
    def of(cls, turn: Turn, parent_tokens: int) -> KeptTurn:
        if not turn.prompt_ids and not turn.completion_ids:  # an external model's
            return cls(turn, _NO_IDS, _NO_LOGPROBS, 0)
        ids = turn.prompt_ids + turn.completion_ids
        return cls(
            replace(turn, prompt_ids=[], completion_ids=[], logprobs=[]),
            array("I", ids[parent_tokens:]),
            array("d", turn.logprobs),
            len(ids),
        )

    @property
    def kept_tokens(self) -> int:
        """Tokens that are held here; those of a turn without ids, by the provider's count, are text."""
        return len(self.new_ids) or self.turn.prompt_tokens + self.turn.completion_tokens

    def whole(self, earlier: list[Turn]) -> Turn:
        """The turn as it was recorded; `earlier` are all whole turns before it."""
        parent = None if self.turn.parent is None else earlier[self.turn.parent]
        ids = [] if parent is None else parent.prompt_ids + parent.completion_ids
        ids += self.new_ids.tolist()
        sampled_from = len(ids) - len(self.logprobs)
        return replace(
            self.turn,
            prompt_ids=ids[:sampled_from],
            completion_ids=ids[sampled_from:],
            logprobs=self.logprobs.tolist(),
        )


class OpenRollout:
    """A rollout from `admit` to `seal`.

    Turns get their ordinals in the order in which their calls are answered, under a lock; a turn is in the
    store before the reply to its call is complete. Calls of one sample may run at once: each is placed when
    it comes, so two with the same history become two branches.
    """

    def __init__(
        self,
        rollout_id: str,
        store: TurnStore,
        *,
        seed: int,
        defaults: SamplingDefaults,
        max_turns: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.rollout_id = rollout_id
        self.defaults = defaults
        self.sealed = False
        self.counts = CallCounts()
        self.turns: list[KeptTurn] = []  # `seal` gives them whole
        self._store = store
        self._seed = seed
        self._max_turns = max_turns
        self._budget = budget or Budget()
        self._spent = Usage(0, 0)
        self._tools: dict[bytes, list[ToolSchema]] = {}  # JSON -> the one copy that all turns share
        self._trees: dict[str, ConversationTree] = {}
        self._calls_of_sample: dict[str, int] = {}
        self._taken_seeds: set[tuple[str, int]] = set()  # by sample: of calls that an earlier life answered
        self._num_calls = 0
        self._running: set[Work] = set()
        self._recording = asyncio.Lock()

    @property
    def kept_tokens(self) -> int:
        return sum(kept.kept_tokens for kept in self.turns)

    def tree(self, sample_id: str, new: Callable[[], ConversationTree]) -> ConversationTree:
        """The tree of the sample, a `new` one at its first call."""
        tree = self._trees.get(sample_id)
        if tree is None:
            tree = self._trees[sample_id] = new()
        return tree

    def next_seed(self, sample_id: str) -> int:
        """The seed of the sample's next call: the same in every run of the same rollout seed."""
        position = self._calls_of_sample.get(sample_id, 0)
        while (sample_id, seed := derive_seed(self._seed, sample_id, position)) in self._taken_seeds:
            position += 1
        self._calls_of_sample[sample_id] = position + 1
        return seed

    def next_call_id(self) -> str:
        self._num_calls += 1
        return f"chatcmpl-{self.rollout_id}-{self._num_calls}"

    def check_limits(self, turns: int = 1) -> None:
        """Raise Refusal when the rollout may not take this many turns more, those under way counted."""
        if self.sealed:
            raise self.has_ended()
        if self._max_turns is not None:
            rest = self._max_turns - len(self.turns) - sum(work.turns for work in self._running)
            if rest < turns:
                used = "has used them" if rest < 1 else f"has {rest} left, fewer than the {turns} asked for"
                raise Refusal(
                    403, f"the rollout may take {self._max_turns} turns and {used}", code="turn_limit_reached"
                )
        self._budget.check(self._spent)

    def has_ended(self) -> Refusal:
        return Refusal(
            409, f"rollout {self.rollout_id} has ended: nothing is added to it", code="rollout_ended"
        )

    def begun(self, work: Work) -> None:
        """Tie the work to the rollout: `seal` stops it, or waits for what is being recorded."""
        self._running.add(work)

    def ended(self, work: Work) -> None:
        self._running.discard(work)

    def refused(self, refusal: Refusal, sample_id: str = "") -> Refusal:
        """Count a refusal, and hand it back. `sample_id` is of a call that went as far as the model."""
        if refusal.code in MODEL_REFUSALS:
            self._failed(sample_id, "model", str(refusal))
        self.counts.refused[refusal.code] = self.counts.refused.get(refusal.code, 0) + 1
        self.counts.latest_refusals[refusal.code] = str(refusal)
        return refusal

    def failed(self, sample_id: str, kind: str, message: str) -> None:
        self.counts.failed += 1
        self._failed(sample_id, kind, message)

    def _failed(self, sample_id: str, kind: str, message: str) -> None:
        self.counts.failures.pop(sample_id, None)
        self.counts.failures[sample_id] = CallFailure(kind, message)

    async def record(
        self,
        work: Work,
        sample_id: str,
        call: ModelCall,
        answer: Answer,
        latency_ms: float,
        note: str,
        native: Native | None,
    ) -> Reply:
        """Give the answer its place, durably. The work is `recording`, so nobody stops it half-way."""
        async with self._recording:
            turn = self._turn(len(self.turns), sample_id, call, answer, latency_ms)
            await self._store.append_turn(turn, note, native)
            self._keep(turn, answer.placement)
        work.turns -= 1
        self.counts.failures.pop(sample_id, None)
        # Without its tokens where the answer shows none: replies are remembered for retries.
        shown = self.turns[turn.ordinal].turn if call.rollout_id is None else turn
        return Reply(shown, answer.token_logprobs)

    def _keep(self, turn: Turn, placement: Placement) -> None:
        parent = None if turn.parent is None else self.turns[turn.parent]
        kept = KeptTurn.of(turn, 0 if parent is None else parent.num_tokens)
        self.turns.append(kept)
        self._trees[turn.sample_id].add(turn, placement, kept.new_ids)
        self._spent += usage_of([turn])
        self.counts.answered += 1

    def take_up(self, turn: Turn, placement: Placement, call_number: int, seeds: list[int]) -> None:
        """The next turn of an earlier life; its sample has a tree."""
        turn = replace(turn, tools=self._shared(turn.tools))
        self._keep(turn, placement)
        self._num_calls = max(self._num_calls, call_number)
        self._taken_seeds.update((turn.sample_id, seed) for seed in seeds)

    def _turn(self, ordinal: int, sample_id: str, call: ModelCall, answer: Answer, latency_ms: float) -> Turn:
        return Turn(
            rollout_id=self.rollout_id,
            sample_id=sample_id,
            ordinal=ordinal,
            parent=answer.placement.parent,
            branch_reason=answer.placement.branch_reason,
            messages=answer.placement.messages,
            tools=self._shared(call.tools),
            response=self._with_call_ids(answer.message, sample_id, ordinal),
            finish_reason=answer.finish_reason,
            prompt_ids=answer.placement.prompt_ids,
            completion_ids=answer.completion_ids,
            logprobs=answer.logprobs,
            policy_version=answer.policy_version,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            sampling=answer.sampling,
            model=answer.model,
            malformed_tool_calls=answer.malformed_tool_calls,
            latency_ms=latency_ms,
        )

    def _shared(self, tools: list[ToolSchema]) -> list[ToolSchema]:
        """The copy that earlier turns have: each request brings its own."""
        try:
            return self._tools.setdefault(orjson.dumps(tools), tools)
        except TypeError:  # an integer of more than 64 bits
            return tools

    def _with_call_ids(self, message: Message, sample_id: str, ordinal: int) -> Message:
        """Tool calls without an id get one: unique in the rollout, the same in every run of its seed."""
        calls = message.get("tool_calls")
        if not calls:
            return message
        named = []
        for position, call in enumerate(calls):
            origin = f"{self._seed}/{sample_id}/{ordinal}/{position}".encode()
            suffix = blake2b(origin, digest_size=4).hexdigest()
            own_id = call.get("id") or f"call_{ordinal}_{position}_{suffix}"
            named.append({"id": own_id, "type": "function", "function": call["function"]})
        return {**message, "tool_calls": named}

    async def seal(self) -> list[Turn]:
        """End the rollout: cancel its calls, wait for what is being recorded; all turns."""
        self.sealed = True
        for work in self._running:
            if not work.recording:
                work.task.cancel()
        if self._running:
            await asyncio.wait([work.task for work in self._running])
        self._trees.clear()
        self._tools.clear()
        whole: list[Turn] = []
        for kept in self.turns:
            whole.append(kept.whole(whole))
        return whole


def derive_seed(rollout_seed: int, sample_id: str, position: int) -> int:
    """Seed in [0, 2**31) of call number `position` of a sample; neighbours have nothing in common."""
    digest = blake2b(f"{rollout_seed}/{position}/{sample_id}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
