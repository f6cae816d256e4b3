import pytest

from osmosis_ai.gateway.messages import (
    BadMessageError,
    canonical,
    comparable_arguments,
    fingerprint,
    fingerprints_of_response,
)


def read(message, *, text_only=True):
    return canonical(message, "messages[0]", text_only=text_only)


def same(left, right):
    return fingerprint(read(left)) == fingerprint(read(right))


def call(arguments, call_id="c1", name="add"):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def test_text_parts_are_joined_and_null_is_the_empty_text():
    parts = [{"type": "text", "text": "2 times "}, {"type": "text", "text": "3?"}]
    assert read({"role": "user", "content": parts}) == {"role": "user", "content": "2 times 3?"}
    assert same({"role": "assistant", "content": None}, {"role": "assistant", "content": ""})
    assert same({"role": "assistant"}, {"role": "assistant", "content": []})
    assert not same({"role": "user", "content": "a"}, {"role": "user", "content": "a "})


def test_arguments_are_compared_as_json_values():
    assert same(call('{"a": 1, "b": 2}'), call('{"b":2,"a":1.0}'))
    assert same(call('{"a": 1}'), call({"a": 1}))
    assert not same(call('{"a": 1}'), call('{"a": true}'))
    assert not same(call('{"a": 0}'), call('{"a": false}'))
    assert not same(call('{"a": 1}'), call('{"a": "1"}'))
    assert not same(call('{"a": 12345678901234567890123}'), call('{"a": 12345678901234567890124}'))
    assert not same(call('{"a": 1}'), call('{"a": 1}', call_id="c2"))
    assert not same(call('{"a": 1}'), call('{"a": 1}', name="multiply"))
    assert same(call('{"s": "\\u00e9"}'), call('{"s": "é"}'))


def test_arguments_that_are_no_object_are_compared_as_text():
    assert comparable_arguments("not json") == "Tnot json"
    assert comparable_arguments('{"a": NaN}') == 'T{"a": NaN}'
    assert comparable_arguments("[1]") == "T[1]"
    assert comparable_arguments('{"b": 1.0, "a": true}') == 'J{"a":true,"b":1}'


def test_unreadable_arguments_may_come_back_as_an_empty_object_and_readable_ones_may_not():
    assert fingerprint(read(call("{}"))) in fingerprints_of_response(read(call('{"a": 2,}')))
    assert fingerprint(read(call("{}"))) not in fingerprints_of_response(read(call('{"a": 2}')))


def test_reasoning_is_kept_but_not_compared():
    thought = {"role": "assistant", "content": "4", "reasoning_content": "two and two"}
    assert read(thought)["reasoning_content"] == "two and two"
    assert same(thought, {"role": "assistant", "content": "4"})


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("hello", "messages[0]"),
        ({"role": "robot", "content": ""}, "messages[0].role"),
        ({"role": "user", "content": 4}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0]"),
        ({"role": "tool", "content": "5"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "", "colour": "red"}, "messages[0].colour"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0]"),
        ({"role": "user", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls"),
    ],
)
def test_what_the_policy_cannot_read_is_refused_by_place(message, place):
    with pytest.raises(BadMessageError) as refused:
        read(message)
    assert refused.value.param == place


def test_a_provider_gets_images_and_fields_that_we_do_not_know():
    content = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "x"}}]
    message = {"role": "user", "content": content, "colour": "red"}
    assert read(message, text_only=False) == message
