"""What the policy wrote becomes an assistant message; what it wrote badly stays data."""

import json
import random

import pytest

from osmosis_ai.engine.completions import ParsedCompletion, ParsedToolCall, parse_completion

ADD = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
MULTIPLY = '<tool_call>{"name": "multiply", "arguments": {"a": 3, "b": 4}}</tool_call>'


def is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def test_plain_text_is_the_content_as_it_was_written():
    assert parse_completion("  The answer is 148.\n") == ParsedCompletion("  The answer is 148.\n", [], [])


def test_no_text_and_no_call_is_no_content():
    assert parse_completion("") == ParsedCompletion(None, [], [])


def test_only_blanks_stay_the_content():
    assert parse_completion(" \n").content == " \n"


def test_a_call_is_delivered_with_its_arguments_as_json_text():
    parsed = parse_completion(ADD)
    assert parsed == ParsedCompletion(None, [ParsedToolCall("add", '{"a": 1, "b": 2}')], [])


def test_blanks_around_calls_are_no_content():
    assert parse_completion(f"\n{ADD}\n{MULTIPLY}\n").content is None


def test_text_before_between_and_after_calls_is_kept_in_order():
    parsed = parse_completion(f"one {ADD}two {MULTIPLY} three")
    assert parsed.content == "one two  three"
    assert [call.name for call in parsed.tool_calls] == ["add", "multiply"]


def test_blanks_inside_the_tags_and_other_spacing_are_fine():
    parsed = parse_completion('<tool_call>\n{"arguments":{"a":1},"name":"add"}\n</tool_call>')
    assert parsed == ParsedCompletion(None, [ParsedToolCall("add", '{"a": 1}')], [])


def test_a_call_without_arguments_has_none():
    assert parse_completion('<tool_call>{"name": "now"}</tool_call>').tool_calls == [
        ParsedToolCall("now", "{}")
    ]


def test_arguments_written_as_text_are_taken_as_they_are():
    body = json.dumps({"name": "add", "arguments": '{"a":1}'})
    parsed = parse_completion(f"<tool_call>{body}</tool_call>")
    assert parsed == ParsedCompletion(None, [ParsedToolCall("add", '{"a":1}')], [])


def test_unicode_is_not_escaped():
    parsed = parse_completion('<tool_call>{"name": "say", "arguments": {"text": "höher 💡"}}</tool_call>')
    assert parsed.tool_calls[0].arguments == '{"text": "höher 💡"}'


def test_half_a_surrogate_pair_stays_escaped_so_that_it_can_be_sent():
    parsed = parse_completion(r'<tool_call>{"name": "say", "arguments": {"text": "\ud83d"}}</tool_call>')
    assert parsed.tool_calls[0].arguments == r'{"text": "\ud83d"}'


@pytest.mark.parametrize(
    ("body", "arguments", "reason"),
    [
        ('{"name": "add", "arguments": {"a": 1,}}', '{"a": 1,}', "not JSON"),
        ('{"name": "add", "arguments": {"a": 1, "b": }}', '{"a": 1, "b": }', "not JSON"),
        ('{"name": "add", "arguments": {"a": NaN}}', '{"a": NaN}', "NaN is not a JSON value"),
        ('{"name": "add", "arguments": [1, 2]}', "[1, 2]", "not a JSON object but a list"),
        ('{"name": "add", "arguments": "1, 2"}', '"1, 2"', "a text that is no JSON object"),
        ('{"name": "add", "arguments": null}', "null", "not a JSON object but null"),
    ],
)
def test_a_malformed_call_with_a_name_keeps_its_raw_arguments(body, arguments, reason):
    parsed = parse_completion(f"<tool_call>{body}</tool_call>")
    assert parsed.content is None
    assert parsed.tool_calls == [ParsedToolCall("add", arguments)]
    assert len(parsed.malformed) == 1 and reason in parsed.malformed[0]


def test_a_missing_brace_does_not_let_the_call_run():
    text = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}</tool_call>'
    parsed = parse_completion(text)
    assert parsed.tool_calls[0].name == "add"
    assert not is_json_object(parsed.tool_calls[0].arguments)
    assert len(parsed.malformed) == 1


@pytest.mark.parametrize("tail", ["", "}", "}}", "}}}"])
def test_an_unclosed_call_is_malformed_and_cannot_run(tail):
    parsed = parse_completion('Hm. <tool_call>{"name": "add", "arguments": {"a": 1' + tail)
    assert parsed.content == "Hm. "
    assert parsed.tool_calls[0].name == "add"
    assert not is_json_object(parsed.tool_calls[0].arguments)
    assert parsed.malformed == ["not closed by </tool_call>"]


def test_a_call_that_begins_inside_another_is_a_call_and_the_other_is_unclosed():
    parsed = parse_completion('<tool_call>{"name": "add"' + MULTIPLY)
    assert [call.name for call in parsed.tool_calls] == ["add", "multiply"]
    assert parsed.tool_calls[1].arguments == '{"a": 3, "b": 4}'
    assert parsed.malformed == ["not closed by </tool_call>"]


@pytest.mark.parametrize(
    "block",
    [
        "<tool_call>add 1 2</tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        r'<tool_call>{"name": "\ud83d", "arguments": {}}</tool_call>',
        "<tool_call>",
    ],
)
def test_a_malformed_call_without_a_readable_name_stays_in_the_content(block):
    parsed = parse_completion(f"before {block}")
    assert parsed.content == f"before {block}"
    assert parsed.tool_calls == []
    assert len(parsed.malformed) == 1


def test_a_lone_end_tag_is_text():
    assert parse_completion("148.</tool_call>") == ParsedCompletion("148.</tool_call>", [], [])


def test_a_malformed_call_does_not_hide_a_good_one():
    parsed = parse_completion("<tool_call>x</tool_call>" + ADD)
    assert parsed.content == "<tool_call>x</tool_call>"
    assert parsed.tool_calls == [ParsedToolCall("add", '{"a": 1, "b": 2}')]
    assert len(parsed.malformed) == 1


def test_deep_nesting_and_endless_numbers_are_malformed():
    deep = '<tool_call>{"name": "add", "arguments": ' + "[" * 100_000 + "</tool_call>"
    long = '<tool_call>{"name": "add", "arguments": {"a": ' + "9" * 5_000 + "}}</tool_call>"
    for text in (deep, long):
        parsed = parse_completion(text)
        assert parsed.tool_calls[0].name == "add"
        assert len(parsed.malformed) == 1


def test_no_text_makes_it_raise_and_every_call_is_runnable_or_counted():
    parts = [
        "<tool_call>",
        "</tool_call>",
        '{"name": "add"',
        ', "arguments": ',
        '{"a": 1}',
        "}",
        '"',
        "\\",
        "ü",
        " 7",
    ]
    rng = random.Random(0)
    for _ in range(5_000):
        parsed = parse_completion("".join(rng.choices(parts, k=rng.randint(1, 9))))
        runnable = sum(is_json_object(call.arguments) for call in parsed.tool_calls)
        assert len(parsed.tool_calls) - runnable <= len(parsed.malformed)
        assert parsed.content is None or parsed.content
