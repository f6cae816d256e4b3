"""Whose call is it? The key opens one rollout; headers and path may name it too, and must then agree."""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Mapping
from hashlib import sha256

from osmosis_ai.gateway.call import Refusal
from osmosis_ai.gateway.capture import OpenRollout

REMEMBERED = 10_000  # ended rollouts, for clear answers to late calls
WITH_TURNS = 256  # of these, the latest, for who asks for the turns again
DEFAULT_SAMPLE = "main"  # of a call that names no sample
MAX_SAMPLE_ID = 256  # characters


class Registry:
    """The rollouts that have a key: open ones, and the latest that have ended."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, OpenRollout] = {}  # sha256 of the key -> rollout
        self._by_id: dict[str, OpenRollout] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()  # keys of ended rollouts, oldest first
        self._with_turns: deque[OpenRollout] = deque()
        self._digest_of: dict[str, bytes] = {}
        self.strangers: dict[str, int] = {}  # refused calls that name no rollout, by code

    def admit(self, rollout: OpenRollout) -> str:
        """A new key for the rollout."""
        if rollout.rollout_id in self._by_id:
            raise ValueError(f"rollout {rollout.rollout_id} has been admitted already")
        key = secrets.token_urlsafe(32)
        digest = sha256(key.encode()).digest()
        self._by_key[digest] = rollout
        self._by_id[rollout.rollout_id] = rollout
        self._digest_of[rollout.rollout_id] = digest
        return key

    def get(self, rollout_id: str) -> OpenRollout:
        try:
            return self._by_id[rollout_id]
        except KeyError:
            raise KeyError(f"rollout {rollout_id} was not admitted to this gateway") from None

    def open_rollouts(self) -> list[OpenRollout]:
        return [rollout for rollout in self._by_id.values() if not rollout.sealed]

    def ended(self, rollout_id: str) -> None:
        """The rollout is sealed; forget the oldest of those that are."""
        digest = self._digest_of[rollout_id]
        if digest in self._ended:
            return
        self._ended[digest] = None
        self._with_turns.append(self._by_id[rollout_id])
        while len(self._with_turns) > WITH_TURNS:
            self._with_turns.popleft().turns.clear()
        while len(self._ended) > REMEMBERED:
            digest, _ = self._ended.popitem(last=False)
            forgotten = self._by_key.pop(digest)
            del self._by_id[forgotten.rollout_id], self._digest_of[forgotten.rollout_id]

    def identify(self, headers: Mapping[bytes, bytes], id_in_path: str | None) -> tuple[OpenRollout, str]:
        """The rollout and the sample id of a call. Raises Refusal with 401, 403, 409 or 400."""
        named = id_in_path or _header(headers, b"x-rollout-id")
        rollout = self._by_bearer(headers)
        if rollout is None:
            raise self._unknown_key(headers, named)
        for place, claimed in (("path", id_in_path), ("x-rollout-id", _header(headers, b"x-rollout-id"))):
            if claimed and claimed != rollout.rollout_id:
                problem = f"the key belongs to rollout {rollout.rollout_id}, but the {place} names {claimed}"
                raise rollout.refused(
                    Refusal(403, f"{problem}. A key opens its own rollout only", code="wrong_rollout")
                )
        if rollout.sealed:
            raise rollout.refused(rollout.has_ended())
        sample_id = _header(headers, b"x-sample-id") or DEFAULT_SAMPLE
        if len(sample_id) > MAX_SAMPLE_ID or not sample_id.isprintable():
            problem = f"at most {MAX_SAMPLE_ID} printable characters, got {sample_id[:80]!r}"
            raise rollout.refused(
                Refusal(
                    400, f"x-sample-id must have {problem}", code="invalid_sample_id", param="x-sample-id"
                )
            )
        return rollout, sample_id

    def _by_bearer(self, headers: Mapping[bytes, bytes]) -> OpenRollout | None:
        key = _key(headers)
        if not key:
            return None
        # The look-up is by a hash of the key, so its time says nothing about the key; then compared whole.
        digest = sha256(key.encode("utf-8", "surrogateescape")).digest()
        rollout = self._by_key.get(digest)
        if rollout is None or not hmac.compare_digest(self._digest_of[rollout.rollout_id], digest):
            return None
        return rollout

    def _unknown_key(self, headers: Mapping[bytes, bytes], named: str | None) -> Refusal:
        if _key(headers):
            refusal = Refusal(
                401,
                "this key opens no rollout. Use the api_key of the rollout's own RolloutContext",
                code="invalid_api_key",
            )
        else:
            refusal = Refusal(
                401,
                "a call needs the rollout's key: Authorization: Bearer <api_key of the RolloutContext>",
                code="missing_api_key",
            )
        rollout = self._by_id.get(named) if named else None
        if rollout is not None:
            return rollout.refused(refusal)
        self.strangers[refusal.code] = self.strangers.get(refusal.code, 0) + 1
        return refusal


def _key(headers: Mapping[bytes, bytes]) -> str:
    """The key of `Authorization: Bearer <key>`; "" when there is none."""
    scheme, _, key = _header(headers, b"authorization").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _header(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("utf-8", "surrogateescape").strip()
