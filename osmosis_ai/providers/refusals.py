"""What an endpoint means by a refusal: OpenAI's codes, and the words of those who have other ones."""

from __future__ import annotations

from typing import Any

import orjson

PROVIDER_ERROR = "provider_error"  # the endpoint's failure, not the model's word
OWN_CODES = {  # the endpoint's code -> ours, which is OpenAI's
    "context_length_exceeded": "context_length_exceeded",
    "string_above_max_length": "context_length_exceeded",
    "content_filter": "content_filter",
    "content_policy_violation": "content_filter",
}
WORDS = {  # in a message without such a code -> ours
    "maximum context length": "context_length_exceeded",
    "context window": "context_length_exceeded",
    "prompt is too long": "context_length_exceeded",
    "content filter": "content_filter",
    "content management policy": "content_filter",
}
NO_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached"})  # a 429 that no wait mends


def refusal_code(body: bytes) -> str:
    """Whether the model refused the call, by the body of the answer, and why.

    {"error": {"code": "context_length_exceeded", ...}}                  -> "context_length_exceeded"
    {"message": "This model's maximum context length is 8192 tokens"}    -> "context_length_exceeded"
    {"error": "unknown parameter foo"}                                   -> "provider_error"
    """
    code, message = _code_and_message(body)
    if code in OWN_CODES:
        return OWN_CODES[code]
    return next((ours for words, ours in WORDS.items() if words in message.lower()), PROVIDER_ERROR)


def is_out_of_money(body: bytes) -> bool:
    """Whether a "too many requests" is about an account, which no wait mends."""
    return _code_and_message(body)[0] in NO_MONEY


def _code_and_message(body: bytes) -> tuple[str, str]:
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", body.decode("utf-8", "replace")
    error = document.get("error", document) if isinstance(document, dict) else document
    if not isinstance(error, dict):
        return "", str(error)
    return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
