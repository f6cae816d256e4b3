"""Rollouts that the store knows and this process does not: new ones, and those of an earlier life.

Whoever admits a rollout leaves its terms and a digest of its key in the store. The first call with that key
takes the rollout up: from its turns and their notes come the message trees with the very tokens, what was
spent, and the memory of retries, so that neither the agent nor the trainer sees that the gateway was started
again. Calls that were being worked on are not in the store; asked again, they are sampled with the seeds that
they had, since those are free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from osmosis_ai.gateway.call import Reply
from osmosis_ai.gateway.capture import OpenRollout
from osmosis_ai.gateway.identity import Admission, Registry
from osmosis_ai.gateway.notes import Note, read_note
from osmosis_ai.gateway.retries import MAX_ATTEMPTS, Attempt
from osmosis_ai.gateway.targets import Target
from osmosis_ai.gateway.terms import Terms
from osmosis_ai.gateway.text_prompts import SampleTree
from osmosis_ai.gateway.tree import Placement
from osmosis_ai.store.base import AdmissionRecord, Admissions, Store
from osmosis_ai.types import Turn

Answered = Sequence[tuple[Turn, Note]]


class Restoring:
    """Takes rollouts up for one gateway; each once, whoever asks first."""

    def __init__(self, name: str, store: Store, target: Target, rollouts: Registry) -> None:
        self._name = name
        self._store = store
        self._admissions: Admissions = store.admissions
        self._target = target
        self._rollouts = rollouts
        self._underway: dict[str, asyncio.Task[None]] = {}

    async def by_key(self, key_digest: bytes, named: str = "") -> None:
        """Take up the rollout of a key, if this gateway has one. Raises StoreError.

        A key that opens nothing is counted at the rollout that the call names: then that one is taken up.
        """
        record = await self._admissions.by_key(key_digest)
        if record is not None or not named:
            await self._take_up(record)
        else:
            await self.by_rollout(named)

    async def by_rollout(self, rollout_id: str) -> None:
        """The same by its id."""
        if not self._rollouts.knows(rollout_id):
            await self._take_up(await self._admissions.by_rollout(rollout_id))

    async def _take_up(self, record: AdmissionRecord | None) -> None:
        if record is None or record.gateway != self._name or self._rollouts.knows(record.rollout_id):
            return
        underway = self._underway.get(record.rollout_id)
        if underway is None:
            underway = asyncio.create_task(self._restore(record))
            self._underway[record.rollout_id] = underway
            underway.add_done_callback(lambda _: self._underway.pop(record.rollout_id))
        await asyncio.shield(underway)

    async def _restore(self, record: AdmissionRecord) -> None:
        answered = [
            (turn, read_note(note))
            for turn, note in await self._store.admissions.answered(record.rollout_id)
            if note is not None
        ]
        self._rollouts.add(restored(record, answered, self._store, self._target))
        if record.sealed:
            await self._rollouts.get(record.rollout_id).seal()
            self._rollouts.ended(record.rollout_id)


def restored(record: AdmissionRecord, answered: Answered, store: Store, target: Target) -> Admission:
    """The rollout as it stands in the store."""
    terms = Terms.of(record.terms)
    rollout = OpenRollout(
        record.rollout_id,
        store,
        seed=terms.seed,
        defaults=terms.sampling,
        max_turns=terms.max_turns,
        budget=terms.budget,
    )
    admission = Admission(
        rollout,
        record.key_digest,
        terms.expires_monotonic,
        default_sample=terms.sample_id,
        alias=terms.alias,
        tools=asyncio.get_running_loop().create_future() if terms.awaits_tools else None,
    )
    if record.tools is not None:
        admission.offer_tools(record.tools)
    _restore_turns(rollout, answered, target)
    _restore_retries(admission, answered, target)
    return admission


def _restore_turns(rollout: OpenRollout, answered: Answered, target: Target) -> None:
    last_of_sample = {turn.sample_id: turn.ordinal for turn, note in answered if not note.raw_text}
    for turn, note in answered:
        tree = rollout.tree(turn.sample_id, target.new_tree)
        newest = last_of_sample.get(turn.sample_id) == turn.ordinal
        placement: Placement
        if note.raw_text and isinstance(tree, SampleTree):
            placement = tree.placed_text(turn, note.chain)
        else:
            placement = tree.placed(turn, note.chain, with_text=newest)
        number = int(note.call_id.rpartition("-")[2])
        rollout.take_up(turn, placement, number, note.seeds)


def _restore_retries(admission: Admission, answered: Answered, target: Target) -> None:
    rollout, now = admission.rollout, time.monotonic() - time.time()
    attempts: dict[str, Attempt] = {}
    for turn, note in answered[-MAX_ATTEMPTS:]:
        attempt = attempts.get(note.call_id)
        if attempt is None:
            attempt = Attempt(note.call_id, note.request, note.seeds, now + note.began, note.key)
            attempts[note.call_id] = attempt
            admission.retries.add(attempt)
        tree = rollout.tree(turn.sample_id, target.new_tree)
        shown = turn if note.tokens else rollout.turns[turn.ordinal].turn
        reply = Reply(shown, tree.token_logprobs(turn) if note.logprobs else None)
        admission.retries.recorded(attempt, reply)
        admission.retries.have_arrived(note.arrived)
        if note.keeps is not None:
            admission.answers[note.call_id] = [*turn.messages[note.keeps :], turn.response]
