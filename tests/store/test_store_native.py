"""Bodies of calls come back byte for byte, and cost what they add."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.store.native import pack_body, text_of, unpack_body
from osmosis_ai.store.packing import to_json


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_a_body_is_its_difference_to_any_other(head, middle, other, tail):
    body, before = head + middle + tail, head + other + tail
    assert unpack_body(pack_body(body, before), before) == body
    assert unpack_body(pack_body(before, body), body) == before
    assert unpack_body(pack_body(body, b""), b"") == body


@pytest.mark.parametrize(("body", "before"), [(b"", b""), (b"aa", b"aaa"), (b"aaa", b"aa"), (b"abab", b"ab")])
def test_a_body_that_overlaps_with_itself_comes_back(body, before):
    assert unpack_body(pack_body(body, before), before) == body


def test_a_call_of_a_long_conversation_costs_what_is_new_in_it():
    messages = [{"role": "user", "content": f"{n} " * 400} for n in range(50)]
    bodies = [json.dumps({"messages": messages[:n], "stream": False}).encode() for n in range(1, 51)]
    texts = [[(n, to_json(message).encode())] for n, message in enumerate(messages)]
    packed = [pack_body(*call) for call in zip(bodies, [b"", *bodies], texts, strict=False)]
    assert sum(map(len, packed)) < len(bodies[-1]) / 10
    assert sum(map(len, bodies)) > 20 * len(bodies[-1])


TEXT = st.text(min_size=0, max_size=80)


@given(st.lists(TEXT, max_size=4), TEXT, st.sampled_from([(",", ":"), (", ", ": ")]), st.booleans())
def test_texts_of_messages_that_the_database_has_are_not_kept_again(contents, other, separators, ascii_only):
    messages = [{"role": "user", "content": content} for content in contents]
    stored = [to_json(message).encode() for message in [*messages, {"role": "tool", "content": other}]]
    body = json.dumps({"messages": messages, "x": other}, separators=separators, ensure_ascii=ascii_only)
    packed = pack_body(body.encode(), b"", list(enumerate(stored)))
    assert unpack_body(packed, b"", stored) == body.encode()


def test_a_body_of_stored_messages_is_small():
    messages = [{"role": "user", "content": f"{n} " * 400} for n in range(3)]
    messages.append({"role": "tool", "content": "7 " * 400, "tool_call_id": "call_1"})
    stored = [to_json(message).encode() for message in messages]
    body = json.dumps({"messages": messages}).encode()
    packed = pack_body(body, b"", list(enumerate(stored)))
    assert unpack_body(packed, b"", stored) == body
    assert len(packed) < 250 < len(body) / 10


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b'{"role":"user","content":"2*3?"}', b"2*3?"),
        (b'{"role":"tool","content":"a\\"b","tool_call_id":"c"}', b'a\\"b'),
        (b'{"role":"assistant","content":"x","tool_calls":[]}', b""),
        (b'{"role":"user","content":[{"type":"text"}]}', b""),
    ],
)
def test_the_text_of_a_stored_message(message, text):
    assert text_of(message) == text
