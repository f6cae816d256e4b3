"""Bodies of calls come back byte for byte, and cost what they add."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.store.native import pack_body, unpack_body


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
    packed = [pack_body(body, before) for body, before in zip(bodies, [b"", *bodies], strict=False)]
    assert sum(map(len, packed)) < len(bodies[-1]) / 10
    assert sum(map(len, bodies)) > 20 * len(bodies[-1])
