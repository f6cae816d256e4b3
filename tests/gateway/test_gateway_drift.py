"""What `osmosis drift` says of each way in which an agent breaks its own conversation."""

import copy

import pytest
from gateway_parts import ADD, user

from osmosis_ai.gateway.drift import ADVICE, Break, breaks
from osmosis_ai.gateway.tree import ConversationTree
from osmosis_ai.types import Turn

SYSTEM = {"role": "system", "content": "Use the tools. It is 10:03:07 o'clock."}
CALL = {
    "role": "assistant",
    "content": "I multiply. ",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "mul", "arguments": '{"a": 2, "exact": true}'}}
    ],
}
RESULT = {"role": "tool", "content": "6", "tool_call_id": "c1"}
OTHER = {"type": "function", "function": {"name": "sub", "parameters": {}}}


class Agent:
    """Makes calls and records them as the gateway does; each answer is 10 tokens of 100."""

    def __init__(self):
        self.tree, self.turns = ConversationTree(None), []

    def call(self, messages, answer, tools=(ADD,)):
        placement = self.tree.place(copy.deepcopy(messages), list(tools))
        turn = Turn(
            "r", "main", len(self.turns), placement.parent, placement.branch_reason, placement.messages,
            list(tools), answer, "stop", [], [], [], None, 100, 10, {}, "m", 0, 1.0,
        )  # fmt: skip
        self.turns.append(turn)
        self.tree.add(turn, placement)


def after(change, tools=(ADD,)):
    """The break of an agent that changes its history before its second call."""
    agent = Agent()
    agent.call([SYSTEM, user("2 * 3?")], CALL)
    agent.call(change([SYSTEM, user("2 * 3?"), CALL, RESULT]), {"role": "assistant", "content": "6"}, tools)
    return breaks(agent.turns)


def with_message(place, **fields):
    return lambda messages: [{**m, **fields} if i == place else m for i, m in enumerate(messages)]


def with_arguments(text):
    def change(messages):
        messages = copy.deepcopy(messages)
        messages[2]["tool_calls"][0]["function"]["arguments"] = text
        return messages

    return change


@pytest.mark.parametrize(
    ("change", "cause", "where"),
    [
        (
            with_message(0, content=SYSTEM["content"].replace("03:07", "04:55")),
            "instructions_changed",
            'message 0 (system): …". It is 10:03:07 o\'clock"… became …". It is 10:04:55 o\'clock"…',
        ),
        (
            with_message(1, content="2 * 3? Hurry."),
            "user_message_changed",
            "message 1 (user): '2 * 3?' became '2 * 3? Hurry.'",
        ),
        (
            with_message(2, content="I multiply."),
            "answer_trimmed",
            "message 2 (assistant): 'I multiply. ' became 'I multiply.'",
        ),
        (
            with_message(2, content="Done. "),
            "answer_changed",
            "message 2 (assistant): 'I multiply. ' became 'Done. '",
        ),
        (
            with_arguments('{"a": 2, "exact": 1}'),
            "arguments_changed",
            "message 2 (assistant): …'2, \"exact\": true}' became …'2, \"exact\": 1}'",
        ),
        (with_message(2, tool_calls=[]), "calls_changed", "message 2 (assistant): 1 tool calls became 0"),
        (
            lambda m: [m[0], user("Note."), *m[1:]],
            "messages_inserted",
            "message 1 (user): 'Note.' stands before it",
        ),
        (lambda m: [m[0], *m[2:]], "messages_dropped", "message 1 (user): '2 * 3?' is not there any more"),
        (
            lambda m: [m[0], {"role": "assistant", "content": "Hi"}],
            "history_replaced",
            "message 1 (user): '2 * 3?' became assistant 'Hi'",
        ),
    ],
)
def test_the_first_difference_names_the_cause(change, cause, where):
    (found,) = after(change)
    assert (found.cause, found.where) == (cause, where)
    assert found.prompt_tokens == 100


def test_key_order_and_spacing_of_arguments_break_nothing():
    assert after(with_arguments('{"exact":true,"a":2}')) == []


def test_an_answer_that_comes_back_in_a_new_branch_is_read_again_as_text():
    (found,) = after(with_message(1, content="4 * 3?"))
    assert found == Break(
        "r", "main", 1, "edited_history", "user_message_changed",
        "message 1 (user): '2 * 3?' became '4 * 3?'", prompt_tokens=100, reread_tokens=10,
    )  # fmt: skip
    (dropped,) = after(lambda messages: [messages[0], user("Summary: 6.")])
    assert dropped.reread_tokens == 0, "the answer is not in the prompt at all"


def test_tools_that_come_and_go_are_named():
    (found,) = after(lambda messages: messages, tools=[OTHER])
    assert (found.cause, found.where) == ("tools_changed", "sub added, add removed")


def test_a_second_agent_and_a_second_try_are_told_apart():
    agent = Agent()
    agent.call([SYSTEM, user("2 * 3?")], CALL)
    agent.call([SYSTEM, user("2 * 3?")], CALL)
    agent.call([user("Who are you?")], {"role": "assistant", "content": "Me."})
    assert [found.cause for found in breaks(agent.turns)] == ["resampled", "new_conversation"]


def test_every_cause_has_an_advice():
    reasons = {"tools_changed", "template_not_append_only", "resampled", "new_conversation"}
    assert reasons < set(ADVICE)
    assert all(text.endswith(".") or text.endswith(").") for text in ADVICE.values())
