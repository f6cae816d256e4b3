"""Any endpoint that speaks OpenAI's chat completions, over one pool of kept-alive connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from osmosis_ai.errors import ProviderError, UsageError
from osmosis_ai.lean_http import BrokenOffError, HttpPool, Read
from osmosis_ai.providers.base import OnText, ProviderAnswer, ProviderRequest, ProviderState
from osmosis_ai.providers.breaker import BreakerPolicy
from osmosis_ai.providers.patience import Patience, RetryPolicy, Try, UnreachableError
from osmosis_ai.providers.reply import Reply, content_type
from osmosis_ai.providers.streamed import StreamedAnswer, StreamedError
from osmosis_ai.providers.traffic import DEFAULT_MOST

KEEP_ALIVE_SECONDS = 60.0  # of a connection that nobody uses: a new one may cost a handshake


@dataclass(slots=True)
class _Call:
    """One request, and whether any of its answer has been handed on."""

    url: str
    payload: bytes
    on_text: OnText | None
    handed_on: bool = False
    streamed: StreamedAnswer | None = None  # what the endpoint streams, when it does
    pieces: list[bytes] = field(default_factory=list)  # of the stream, as they came

    def hand_on(self, text: str) -> None:
        self.handed_on = True
        if self.on_text is not None:
            self.on_text(text)

    def reader(self, status: int, headers: dict[bytes, bytes]) -> Read | None:
        """Who reads the answer: a stream is read as it comes."""
        self.streamed = None
        self.pieces.clear()
        if self.on_text is None or status != 200 or content_type(headers) != "text/event-stream":
            return None
        self.streamed = StreamedAnswer(self.hand_on)
        return self._read

    def _read(self, data: bytes) -> bool:
        """Some of the stream. Raises ProviderError."""
        assert self.streamed is not None
        self.pieces.append(data)
        try:
            self.streamed.feed(data)
        except StreamedError as error:
            raise ProviderError(f"{self.url} broke its stream off with an error: {error}") from error
        except (ValueError, TypeError, AttributeError) as error:  # JSON of another shape than chunks have
            raise ProviderError(
                f"{self.url} streamed what is no chunk of a completion ({_text(error)})", retryable=False
            ) from error
        return self.streamed.done


class OpenAICompatibleProvider:
    """POSTs to `{base_url}/chat/completions`, raw text completions to `{base_url}/completions`.

    Every parameter of the agent's request is passed on.

    For a streaming agent the endpoint is asked to stream, and its text is handed on as it comes. A stream
    that breaks off is an error whatever came before; it is tried again only while nothing has been handed on.

    Tried again, as `retry` says: 408, 409, 425, 5xx and broken or refused connections after a growing random
    pause; 429, and 503 and 529 with `Retry-After`, after what the endpoint asks for, with fewer calls at once
    (see `Limit`). Not tried again: other statuses, an account without money, and answers that make no sense
    (HTML, no choices). An answer without `usage` is an error too: an unknown count is not 0, and counts are
    not estimated. An endpoint that answers nothing at all is left alone (see `Breaker`).
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        connect_seconds: float = 10.0,
        total_seconds: float = 600.0,
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
        most: int = DEFAULT_MOST,
    ) -> None:
        """`most` calls at once. The seconds hold for each try, from when it is sent: a call that waits for
        its turn loses none of them. Raises UsageError for a base_url that is no URL.
        """
        if not base_url.startswith(("http://", "https://")):
            raise UsageError(f"llm.base_url must be a URL like https://api.example.com/v1, got {base_url!r}")
        self._base = base_url.rstrip("/").removesuffix("/chat/completions")
        self._model = model
        self._headers = {
            "content-type": "application/json", "accept": "application/json", "accept-encoding": "identity",
        }  # fmt: skip
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._connect_seconds, self._total_seconds = connect_seconds, total_seconds
        self._patience = Patience(self._base, retry, most=most, breaker=breaker)
        self._pool = HttpPool(keep_alive_seconds=KEEP_ALIVE_SECONDS, connect_seconds=connect_seconds)

    async def complete(self, request: ProviderRequest, on_text: OnText | None = None) -> ProviderAnswer:
        call = self._call(request, on_text)
        send = partial(self._answer, call)
        return await self._patience.answer(Try(send, hash(call.payload), lambda: call.handed_on))

    def state(self) -> ProviderState:
        return self._patience.state()

    async def close(self) -> None:
        self._patience.close()
        await self._pool.close()

    def _call(self, request: ProviderRequest, on_text: OnText | None) -> _Call:
        body: dict[str, Any] = {**request.params, "model": self._model}
        if request.prompt is None:
            body["messages"] = list(request.messages)
        else:
            body["prompt"] = request.prompt
        if request.tools:
            body["tools"] = list(request.tools)
        if on_text is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        path = "/chat/completions" if request.prompt is None else "/completions"
        return _Call(self._base + path, orjson.dumps(body), on_text)

    async def _answer(self, call: _Call) -> ProviderAnswer:
        return (await self._post(call)).answer(self._model)

    async def _post(self, call: _Call) -> Reply:
        url = call.url
        try:
            reply = await self._pool.post(
                url, self._headers, call.payload, call.reader, seconds=self._total_seconds
            )
        except TimeoutError as error:
            raise ProviderError(
                f"{url} did not answer: no connection within {self._connect_seconds:g} s, "
                f"or no whole answer within {self._total_seconds:g} s",
                status=504,
            ) from error
        except BrokenOffError as error:
            raise ProviderError(f"{url} ended its answer early ({_text(error)})", status=502) from error
        except OSError as error:
            raise UnreachableError(f"{url} cannot be reached ({_text(error)})", status=503) from error
        except ValueError as error:
            raise ProviderError(str(error), retryable=False) from error
        if call.streamed is not None and not call.streamed.is_whole:
            raise ProviderError(f"{url} ended its stream early, without a finish_reason")
        if call.streamed is not None:
            document, whole = call.streamed.document, b"".join(call.pieces)
            return Reply(url, reply.status, reply.headers, whole, document)
        return Reply(url, reply.status, reply.headers, reply.body)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
