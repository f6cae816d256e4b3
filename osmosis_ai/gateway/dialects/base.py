"""What a wire API is: bytes in, one typed call; typed replies, bytes out. Each dialect is a module like this.

To add one: a file here, and one line in `dialects/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from osmosis_ai.gateway.call import ModelCall, Refusal, Reply
from osmosis_ai.types import Message

# The messages up to and with an earlier answer of this rollout, by its response id; None: there is none.
Recall = Callable[[str], list[Message] | None]


class Events(Protocol):
    """One answer as server-sent events: `start`, any number of `text`, then `finish` or `error`."""

    def start(self) -> bytes: ...

    def text(self, index: int, delta: str) -> bytes:
        """More text of answer number `index`, as it comes."""
        ...

    def finish(self, replies: Sequence[Reply]) -> bytes:
        """What is left of the texts, the tool calls, and the end. The turns are in the store by now."""
        ...

    def error(self, refusal: Refusal) -> bytes:
        """The end of a stream that failed half-way, so that no client takes it for whole."""
        ...


class Dialect(Protocol):
    """A wire API."""

    @property
    def WIRE(self) -> str:
        """Its name in the store."""
        ...

    @property
    def ID_PREFIX(self) -> str:
        """What the ids of its answers begin with."""
        ...

    @property
    def HEARTBEAT(self) -> bytes:
        """What its clients skip in a stream: sent during long silences."""
        ...

    def parse(self, body: bytes, *, for_policy: bool, recall: Recall) -> ModelCall:
        """Read a request. Raises Refusal."""
        ...

    def plain(self, call_id: str, call: ModelCall, replies: Sequence[Reply]) -> bytes:
        """The whole answer: one reply, or `call.n`."""
        ...

    def events(self, call_id: str, call: ModelCall) -> Events:
        """The same answer as a stream."""
        ...

    def error_body(self, refusal: Refusal) -> bytes:
        """A refusal in the shape that its clients read."""
        ...

    def counted(self, num_tokens: int) -> bytes:
        """The answer to "how many tokens would this prompt have?"."""
        ...
