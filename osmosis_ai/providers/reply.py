"""What came back over HTTP from an endpoint, read as an answer or as the reason why it is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, NoReturn

import orjson

from osmosis_ai.errors import ProviderError
from osmosis_ai.providers.base import ProviderAnswer
from osmosis_ai.providers.patience import PASSED_ON, ThrottledError
from osmosis_ai.providers.refusals import PROVIDER_ERROR, is_out_of_money, refusal_code

RETRYABLE = frozenset({408, 409, 425})  # beside everything from 500 on
OVERLOADED = frozenset({503, 529})  # "too many requests" where they say when to come again
SHOWN_CHARS = 300  # of a body, in an error message


@dataclass(frozen=True, slots=True)
class Reply:
    """A response, read to its end."""

    url: str
    status: int
    headers: Mapping[bytes, bytes]  # names in lower case
    body: bytes = b""
    document: dict[str, Any] | None = None  # of a stream, put together

    def answer(self, model: str) -> ProviderAnswer:
        """Raises ProviderError for all that is no answer. `model` is the name that was asked for."""
        if self.status != 200:
            self._refuse(model)
        document = self.document or self._json()
        if document.get("error"):
            raise self._nonsense("with status 200 and an error inside")
        try:
            choice = document["choices"][0]
            message = {"content": choice["text"]} if "text" in choice else dict(choice["message"])
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._nonsense("without choices[0].message") from None
        prompt_tokens, completion_tokens, cached_tokens = self._usage(document)
        return ProviderAnswer(
            message=message,
            finish_reason=str(choice.get("finish_reason") or "stop"),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            model=str(document.get("model") or model),
            cached_tokens=cached_tokens,
            native=self.body,
        )

    def _json(self) -> dict[str, Any]:
        try:
            document = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise self._nonsense(
                f"with {content_type(self.headers)}, not JSON. Is base_url right? It usually ends in /v1"
            ) from None
        if not isinstance(document, dict):
            raise self._nonsense("with JSON that is no object")
        return document

    def _usage(self, document: dict[str, Any]) -> tuple[int, int, int]:
        usage = document.get("usage") or {}
        prompt_tokens, completion_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if not (isinstance(prompt_tokens, int) and isinstance(completion_tokens, int)):
            raise self._nonsense(
                "without usage, so its tokens are unknown, and Osmosis does not estimate them. "
                "Turn usage reporting on at the endpoint",
            )
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        return prompt_tokens, completion_tokens, cached if isinstance(cached, int) else 0

    def _refuse(self, model: str) -> NoReturn:
        """Raise what the status stands for."""
        hint = {
            401: "; check the API key",
            403: "; check the API key and what it may use",
            404: f"; check base_url and the model name {model!r}",
        }.get(self.status, "")
        if 300 <= self.status < 400:
            moved_to = _header(self.headers, b"location") or "another place"
            hint = f"; it has moved to {moved_to}: put that into base_url"
        what = f"{self.url} answered {self.status}: {shown(self.body)}{hint}"
        out_of_money = self.status == 429 and is_out_of_money(self.body)
        retry_after = seconds_of(_header(self.headers, b"retry-after"))
        overloaded = self.status in OVERLOADED and retry_after is not None
        if overloaded or (self.status == 429 and not out_of_money):
            raise ThrottledError(what, retry_after=retry_after)
        passed_on = self.status in PASSED_ON
        raise ProviderError(
            what,
            status=self.status if passed_on or out_of_money else 502,
            retryable=self.status in RETRYABLE or self.status >= 500,
            code=refusal_code(self.body) if passed_on else PROVIDER_ERROR,
        )

    def _nonsense(self, what: str) -> ProviderError:
        return ProviderError(f"{self.url} answered {what}. It sent: {shown(self.body)}", retryable=False)


def content_type(headers: Mapping[bytes, bytes]) -> str:
    """Without its parameters: "text/html; charset=utf-8" -> "text/html"."""
    return (_header(headers, b"content-type") or "no content-type").partition(";")[0].strip().lower()


def _header(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("utf-8", "replace")


def seconds_of(retry_after: str | None) -> float | None:
    """`Retry-After` as seconds from now: a number, or a date. None: not given, or neither."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < float("inf") else None  # not for "nan" either


def shown(body: bytes) -> str:
    """The beginning of a body, on one line."""
    text = " ".join(body[: 4 * SHOWN_CHARS].decode("utf-8", "replace").split())
    return (text[:SHOWN_CHARS] + " ..." if len(text) > SHOWN_CHARS else text) or "an empty body"
