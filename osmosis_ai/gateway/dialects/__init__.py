"""The wire APIs, one per file: bytes <-> `gateway.call.ModelCall` and `gateway.call.Reply`."""

from __future__ import annotations

from osmosis_ai.gateway.dialects import chat, completions, messages, responses
from osmosis_ai.gateway.dialects.base import Dialect

DIALECTS: dict[str, Dialect] = {  # the end of the path -> who reads what comes there
    "chat/completions": chat,
    "completions": completions,
    "responses": responses,
    "messages": messages,
}
COUNTING: dict[str, Dialect] = {  # the same requests, asked for the number of their prompt's tokens only
    "responses/input_tokens": responses,
    "messages/count_tokens": messages,
}
