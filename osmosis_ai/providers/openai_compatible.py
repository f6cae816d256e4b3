"""Any endpoint that speaks OpenAI's chat completions, over one pool of kept-alive connections."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import aiohttp
import orjson

from osmosis_ai.errors import ProviderError, UsageError
from osmosis_ai.providers.base import OnText, ProviderAnswer, ProviderRequest, ProviderState
from osmosis_ai.providers.refusals import PROVIDER_ERROR, refusal_code
from osmosis_ai.providers.streamed import StreamedAnswer, StreamedError

PASSED_ON = frozenset({400, 413, 422})  # the agent's own fault: it gets the endpoint's own status
RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
SHOWN_CHARS = 300  # of a body, in an error message


@dataclass(frozen=True, slots=True)
class _Reply:
    """What came back over HTTP."""

    url: str
    status: int
    content_type: str
    retry_after: str | None
    body: bytes = b""
    document: dict[str, Any] | None = None  # of a stream, put together


@dataclass(slots=True)
class _Call:
    """One request, and whether any of its answer has been handed on."""

    url: str
    payload: bytes
    on_text: OnText | None
    handed_on: bool = False

    def hand_on(self, text: str) -> None:
        self.handed_on = True
        if self.on_text is not None:
            self.on_text(text)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently a call is tried again: after 0.5, 1, 2, ... s, each times 0.5 to 1."""

    attempts: int = 4  # in all, the first included
    first_pause_seconds: float = 0.5
    max_pause_seconds: float = 30.0  # an endpoint that asks for more (Retry-After) is given up on


class OpenAICompatibleProvider:
    """POSTs to `{base_url}/chat/completions`, raw text completions to `{base_url}/completions`.

    Every parameter of the agent's request is passed on.

    For a streaming agent the endpoint is asked to stream, and its text is handed on as it comes. A stream
    that breaks off is an error whatever came before; it is tried again only while nothing has been handed on.

    Tried again, as `retry` says: 408, 409, 425, 429, 5xx and broken or refused connections, after what
    `Retry-After` asks for or a growing pause. Not tried again: other statuses, and answers that make no sense
    (HTML, no choices). An answer without `usage` is an error too: an unknown count is not 0, and counts are
    not estimated.
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
    ) -> None:
        """The seconds hold for each attempt. Raises UsageError for a base_url that is no URL."""
        if not base_url.startswith(("http://", "https://")):
            raise UsageError(f"llm.base_url must be a URL like https://api.example.com/v1, got {base_url!r}")
        self._base = base_url.rstrip("/").removesuffix("/chat/completions")
        self._model = model
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout = aiohttp.ClientTimeout(total=total_seconds, sock_connect=connect_seconds)
        self._retry = retry or RetryPolicy()
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, request: ProviderRequest, on_text: OnText | None = None) -> ProviderAnswer:
        call = self._call(request, on_text)
        for attempt in range(1, self._retry.attempts + 1):
            retry_after: str | None = None
            try:
                reply = await self._post(call)
                retry_after = reply.retry_after
                return self._read(reply)
            except ProviderError as error:
                pause = self._pause(attempt, retry_after)
                if not error.retryable or pause is None or call.handed_on:
                    raise self._final(error, attempt) from error
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

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

    def state(self) -> ProviderState:
        return ProviderState()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, call: _Call) -> _Reply:
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        url = call.url
        try:
            async with self._session.post(url, data=call.payload, headers=self._headers) as response:
                reply = _Reply(
                    url=url,
                    status=response.status,
                    content_type=response.content_type,
                    retry_after=response.headers.get("Retry-After"),
                )
                if call.on_text and reply.status == 200 and reply.content_type == "text/event-stream":
                    return replace(reply, document=await self._read_stream(response, call))
                return replace(reply, body=await response.read())
        except TimeoutError as error:
            raise ProviderError(
                f"{url} did not answer: no connection within {self._timeout.sock_connect:g} s, "
                f"or no whole answer within {self._timeout.total:g} s",
                status=504,
            ) from error
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as error:
            raise ProviderError(f"{url} ended its answer early ({_text(error)})", status=502) from error
        except aiohttp.InvalidURL as error:
            raise ProviderError(f"{url!r} is not a URL", retryable=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ProviderError(f"{url} cannot be reached ({_text(error)})", status=503) from error

    async def _read_stream(self, response: aiohttp.ClientResponse, call: _Call) -> dict[str, Any]:
        answer = StreamedAnswer(call.hand_on)
        try:
            async for data in response.content.iter_any():
                answer.feed(data)
                if answer.done:
                    break
        except StreamedError as error:
            raise ProviderError(f"{call.url} broke its stream off with an error: {error}") from error
        except (ValueError, TypeError, AttributeError) as error:  # JSON of another shape than chunks have
            raise ProviderError(
                f"{call.url} streamed what is no chunk of a completion ({_text(error)})", retryable=False
            ) from error
        if not answer.is_whole:
            raise ProviderError(f"{call.url} ended its stream early, without a finish_reason")
        return answer.document

    def _read(self, reply: _Reply) -> ProviderAnswer:
        if reply.status != 200:
            raise self._refused(reply)
        answer = reply.document or self._json(reply)
        if answer.get("error"):
            raise self._nonsense(reply, "with status 200 and an error inside")
        try:
            choice = answer["choices"][0]
            message = {"content": choice["text"]} if "text" in choice else dict(choice["message"])
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._nonsense(reply, "without choices[0].message") from None
        prompt_tokens, completion_tokens = self._usage(answer, reply)
        return ProviderAnswer(
            message=message,
            finish_reason=str(choice.get("finish_reason") or "stop"),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            model=str(answer.get("model") or self._model),
        )

    def _json(self, reply: _Reply) -> dict[str, Any]:
        try:
            answer = orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            raise self._nonsense(
                reply, f"with {reply.content_type}, not JSON. Is base_url right? It usually ends in /v1"
            ) from None
        if not isinstance(answer, dict):
            raise self._nonsense(reply, "with JSON that is no object")
        return answer

    def _usage(self, answer: dict[str, Any], reply: _Reply) -> tuple[int, int]:
        usage = answer.get("usage") or {}
        counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        if not all(isinstance(count, int) for count in counts):
            raise self._nonsense(
                reply,
                "without usage, so its tokens are unknown, and Osmosis does not estimate them. "
                "Turn usage reporting on at the endpoint",
            )
        return int(counts[0]), int(counts[1])  # type: ignore[arg-type]

    def _refused(self, reply: _Reply) -> ProviderError:
        hint = {
            401: "; check the API key",
            403: "; check the API key and what it may use",
            404: f"; check base_url and the model name {self._model!r}",
        }.get(reply.status, "")
        status = reply.status if reply.status in PASSED_ON or reply.status == 429 else 502
        return ProviderError(
            f"{reply.url} answered {reply.status}: {_shown(reply.body)}{hint}",
            status=status,
            retryable=reply.status in RETRYABLE or reply.status >= 500,
            code=refusal_code(reply.body) if reply.status in PASSED_ON else PROVIDER_ERROR,
        )

    def _nonsense(self, reply: _Reply, what: str) -> ProviderError:
        return ProviderError(f"{reply.url} answered {what}. It sent: {_shown(reply.body)}", retryable=False)

    def _pause(self, attempt: int, retry_after: str | None) -> float | None:
        """Seconds before the next attempt, or None when there is none."""
        if attempt >= self._retry.attempts:
            return None
        asked = _retry_after_seconds(retry_after)
        if asked is not None and asked > self._retry.max_pause_seconds:
            return None
        pause = min(self._retry.first_pause_seconds * 2.0 ** (attempt - 1), self._retry.max_pause_seconds)
        return max(asked or 0.0, pause * random.uniform(0.5, 1.0))

    def _final(self, error: ProviderError, attempts: int) -> ProviderError:
        if attempts == 1:
            return error
        return ProviderError(
            f"{error} (tried {attempts} times)",
            status=error.status,
            retryable=error.retryable,
            code=error.code,
        )


def _retry_after_seconds(value: str | None) -> float | None:
    """`Retry-After` as seconds from now: a number, or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None


def _shown(body: bytes) -> str:
    text = " ".join(body[: 4 * SHOWN_CHARS].decode("utf-8", "replace").split())
    return (text[:SHOWN_CHARS] + " ..." if len(text) > SHOWN_CHARS else text) or "an empty body"


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
