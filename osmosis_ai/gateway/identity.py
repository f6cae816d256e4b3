"""Whose call is it? The key opens one rollout; headers and path may name it too, and must then agree.

A key is a capability: it opens the calls of one rollout, until its expiry, its turn limit or its token
budget, and dies with the rollout. It comes as `Authorization: Bearer KEY` or as `x-api-key: KEY`.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

from osmosis_ai.gateway.call import ModelCall, Refusal, Reply
from osmosis_ai.gateway.capture import OpenRollout
from osmosis_ai.gateway.retries import Retries
from osmosis_ai.gateway.terms import DEFAULT_SAMPLE
from osmosis_ai.types import Message, ToolSchema

REMEMBERED = 2048  # ended rollouts, for clear answers to late calls
WITH_TURNS = 256  # of these, the latest that may keep their turns, for who asks for them again
KEPT_TOKENS = 2_000_000  # that they keep together: at most 24 MB, and the messages
MAX_SAMPLE_ID = 256  # characters


@dataclass(eq=False, slots=True)
class Admission:
    """A rollout that has a key, and what the gateway keeps for its calls."""

    rollout: OpenRollout
    digest: bytes  # sha256 of the key
    expires_at: float | None  # time.monotonic()
    retries: Retries = field(default_factory=Retries)
    answers: dict[str, list[Message]] = field(
        default_factory=dict
    )  # answer's id -> messages up to and with it
    default_sample: str = DEFAULT_SAMPLE
    alias: str = ""  # another name that its calls may use
    tools: asyncio.Future[list[ToolSchema]] | None = None  # of calls that bring none, as soon as known

    def keep(self, call_id: str, call: ModelCall, reply: Reply) -> None:
        """Later calls of the rollout may name this answer instead of repeating it."""
        self.answers[call_id] = [*call.messages[call.instructions :], reply.turn.response]

    def check_named(self, place: str, named: str | None) -> None:
        """Raise Refusal (403) when the call names another rollout than its key's."""
        if named and named not in (self.rollout.rollout_id, self.alias):
            problem = f"the key belongs to rollout {self.rollout.rollout_id}, but the {place} names {named}"
            raise Refusal(403, f"{problem}. A key opens its own rollout only", code="wrong_rollout")

    def waits_for_tools(self, call: ModelCall) -> bool:
        return self.tools is not None and not call.tools

    async def with_tools(self, call: ModelCall) -> ModelCall:
        """The call; with the rollout's tools where it brings none. It may come before these are known."""
        assert self.tools is not None
        return replace(call, tools=await asyncio.shield(self.tools))

    def offer_tools(self, tools: list[ToolSchema]) -> None:
        if self.tools is not None and not self.tools.done():
            self.tools.set_result(tools)

    def check_expiry(self) -> None:
        if self.expires_at is not None and time.monotonic() >= self.expires_at:
            raise Refusal(
                401,
                f"the key of rollout {self.rollout.rollout_id} has expired: the rollout had its time",
                code="key_expired",
            )

    def clear(self) -> None:
        self.offer_tools([])  # a call that waits for them hears that the rollout has ended
        self.retries.clear()
        self.answers.clear()


class Registry:
    """The rollouts that have a key: open ones, and the latest that have ended."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Admission] = {}  # sha256 of the key -> its rollout
        self._by_id: dict[str, Admission] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()  # keys of ended rollouts, oldest first
        self._with_turns: deque[OpenRollout] = deque()  # ended ones, oldest first
        self._kept_tokens = 0  # of these
        self.strangers: dict[str, int] = {}  # refused calls that name no rollout, by code

    def admit(
        self,
        rollout: OpenRollout,
        expires_seconds: float | None = None,
        *,
        default_sample: str = DEFAULT_SAMPLE,
        alias: str = "",
        awaits_tools: bool = False,
        key: str | None = None,
    ) -> str:
        """The rollout's key. With `awaits_tools` calls without tools wait for `offer_tools`."""
        if self.knows(rollout.rollout_id):
            raise ValueError(f"rollout {rollout.rollout_id} has been admitted already")
        key = key or new_key()[0]
        digest = _digest(key)
        expires_at = None if expires_seconds is None else time.monotonic() + expires_seconds
        tools = asyncio.get_running_loop().create_future() if awaits_tools else None
        admission = Admission(
            rollout, digest, expires_at, default_sample=default_sample, alias=alias, tools=tools
        )
        self.add(admission)
        return key

    def add(self, admission: Admission) -> None:
        """A rollout whose key the agent has."""
        self._by_key[admission.digest] = self._by_id[admission.rollout.rollout_id] = admission

    def knows(self, rollout_id: str) -> bool:
        return rollout_id in self._by_id

    def unknown_key(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """The digest of the call's one key, if no rollout here has it."""
        keys = _keys(headers)
        if len(keys) != 1:
            return None
        digest = _digest(keys.pop())
        return None if digest in self._by_key else digest

    def get(self, rollout_id: str) -> OpenRollout:
        return self.admission(rollout_id).rollout

    def admission(self, rollout_id: str) -> Admission:
        try:
            return self._by_id[rollout_id]
        except KeyError:
            raise KeyError(f"rollout {rollout_id} was not admitted to this gateway") from None

    def open_rollouts(self) -> list[OpenRollout]:
        return [known.rollout for known in self._by_id.values() if not known.rollout.sealed]

    def ended(self, rollout_id: str) -> None:
        """The rollout is sealed; forget the oldest of those that are."""
        admission = self.admission(rollout_id)
        if admission.digest in self._ended:
            return
        admission.clear()
        self._ended[admission.digest] = None
        self._keep_turns(admission.rollout)
        while len(self._ended) > REMEMBERED:
            digest, _ = self._ended.popitem(last=False)
            forgotten = self._by_key.pop(digest)
            del self._by_id[forgotten.rollout.rollout_id]

    def _keep_turns(self, rollout: OpenRollout) -> None:
        """Drop the turns of the oldest until the rest is small. The latest keeps its own, however many."""
        kept = self._with_turns
        kept.append(rollout)
        self._kept_tokens += rollout.kept_tokens
        while len(kept) > 1 and (len(kept) > WITH_TURNS or self._kept_tokens > KEPT_TOKENS):
            oldest = kept.popleft()
            self._kept_tokens -= oldest.kept_tokens
            oldest.turns.clear()

    def identify(self, headers: Mapping[bytes, bytes], id_in_path: str | None) -> tuple[Admission, str]:
        """The rollout and the sample id of a call. Raises Refusal with 401, 403, 409 or 400."""
        id_in_header = named_in(headers)
        admission = self._by_its_key(headers, id_in_path or id_in_header)
        rollout = admission.rollout
        try:
            admission.check_named("path", id_in_path)
            admission.check_named("x-rollout-id", id_in_header)
            if rollout.sealed:
                raise rollout.has_ended()
            admission.check_expiry()
            return admission, _sample_id(headers, admission.default_sample)
        except Refusal as refusal:
            raise rollout.refused(refusal) from None

    def _by_its_key(self, headers: Mapping[bytes, bytes], named: str | None) -> Admission:
        keys = _keys(headers)
        if len(keys) == 1:
            # Looked up by a hash of the key, so the time says nothing about the key; then compared whole.
            digest = _digest(keys.pop())
            admission = self._by_key.get(digest)
            if admission is not None and hmac.compare_digest(admission.digest, digest):
                return admission
            raise self._unknown_key("invalid_api_key", named)
        raise self._unknown_key("conflicting_api_keys" if keys else "missing_api_key", named)

    def _unknown_key(self, code: str, named: str | None) -> Refusal:
        refusal = Refusal(401, _KEY_PROBLEMS[code], code=code)
        if named and (admission := self._by_id.get(named)) is not None:
            return admission.rollout.refused(refusal)
        self.strangers[code] = self.strangers.get(code, 0) + 1
        return refusal


def new_key() -> tuple[str, bytes]:
    """A key that nobody guesses, and the digest that it is known by."""
    key = secrets.token_urlsafe(32)
    return key, _digest(key)


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


_KEY_PROBLEMS = {
    "invalid_api_key": "this key opens no rollout. Use the api_key of the rollout's own RolloutContext",
    "missing_api_key": (
        "a call needs the rollout's key: Authorization: Bearer <api_key of the RolloutContext>, or x-api-key"
    ),
    "conflicting_api_keys": (
        "Authorization and x-api-key carry different keys. Send the api_key of the RolloutContext in one"
    ),
}


def named_in(headers: Mapping[bytes, bytes]) -> str:
    """The rollout that the headers name; empty: none."""
    return _header(headers, b"x-rollout-id")


def _sample_id(headers: Mapping[bytes, bytes], default: str) -> str:
    sample_id = _header(headers, b"x-sample-id") or default
    if len(sample_id) > MAX_SAMPLE_ID or not sample_id.isprintable():
        problem = f"at most {MAX_SAMPLE_ID} printable characters, got {sample_id[:80]!r}"
        raise Refusal(400, f"x-sample-id must have {problem}", code="invalid_sample_id", param="x-sample-id")
    return sample_id


def _keys(headers: Mapping[bytes, bytes]) -> set[str]:
    """The keys of the call: one, none, or two that differ."""
    scheme, _, key = _header(headers, b"authorization").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return {key for key in (bearer, _header(headers, b"x-api-key")) if key}


def _header(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("utf-8", "surrogateescape").strip()
