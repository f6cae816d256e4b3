"""The tree of turns: exact continuation where it can be proved, a branch with a reason where it cannot."""

import copy
import json
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from gateway_parts import ADD, make_tokenizer_folder, user
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.engine.completions import parse_completion
from osmosis_ai.gateway.messages import canonical
from osmosis_ai.gateway.render import TemplateRenderer
from osmosis_ai.gateway.tree import ConversationTree
from osmosis_ai.types import Turn

QWEN_LIKE = """
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}
{%- else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


@dataclass
class Policy:
    """Plays the policy and the gateway: places a call and records `text` as its answer."""

    renderer: TemplateRenderer | None
    tree: ConversationTree = None
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self):
        self.tree = ConversationTree(self.renderer)

    def answer(self, messages, text, *, tools=(), cut=False):
        messages = [canonical(message, "m", text_only=True) for message in messages]
        placement = self.tree.place(messages, list(tools))
        ids = self.renderer.encode(text) + ([] if cut else [self.renderer.end_ids[0]])
        turn = self.turn(placement, list(tools), self.message(text), ids)
        self.turns.append(turn)
        self.tree.add(turn, placement)
        return turn

    def message(self, text):
        parsed = parse_completion(text)
        message = {"role": "assistant", "content": parsed.content or ""}
        if parsed.tool_calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{len(self.turns)}_{i}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for i, call in enumerate(parsed.tool_calls)
            ]
        return message

    def turn(self, placement, tools, response, ids):
        return Turn(
            "r", "main", len(self.turns), placement.parent, placement.branch_reason,
            placement.messages, tools,
            response, "stop", placement.prompt_ids, ids, [-0.5] * len(ids), 0, len(placement.prompt_ids),
            len(ids), {}, "policy", 0, 0.0,
        )  # fmt: skip


@pytest.fixture
def policy(renderer):
    return Policy(renderer)


def test_a_continued_turn_keeps_sampled_tokens_that_the_tokenizer_would_cut_otherwise(policy, renderer):
    text = "The answer is 148."
    spelled = [renderer.encode(letter)[0] for letter in text]
    assert spelled != renderer.encode(text)
    placement = policy.tree.place([user("37 times 4?")], [])
    end = renderer.end_ids[0]
    turn = policy.turn(placement, [], {"role": "assistant", "content": text}, [*spelled, end])
    policy.turns.append(turn)
    policy.tree.add(turn, placement)
    second = policy.answer([user("37 times 4?"), turn.response, user("Sure?")], "Yes.")
    assert second.parent == 0
    new = renderer.encode("\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n")
    assert second.prompt_ids == [*turn.prompt_ids, *spelled, end, *new]


def test_an_answer_sent_back_in_another_spelling_is_continued(policy):
    first = policy.answer(
        [user("go")], 'Well <tool_call>{"name": "add", "arguments": {"a": 1.0}}</tool_call>', tools=[ADD]
    )
    sent = copy.deepcopy(first.response)
    sent["content"] = [{"type": "text", "text": "Well "}]
    sent["tool_calls"][0]["function"]["arguments"] = '{"a":1}'
    result = {
        "role": "tool",
        "tool_call_id": sent["tool_calls"][0]["id"],
        "content": [{"type": "text", "text": "1"}],
    }
    second = policy.answer([user("go"), sent, result], "1", tools=[ADD])
    assert (second.parent, second.branch_reason) == (0, None)
    assert second.messages[1] == first.response


@pytest.mark.parametrize(
    ("change", "parent", "reason"),
    [
        (lambda m: m, 1, None),
        (lambda m: [user("other"), *m[1:]], None, "edited_history"),
        (lambda m: [m[0], {**m[1], "content": "one."}, *m[2:]], None, "edited_history"),
        (lambda m: [*m[:3], {**m[3], "content": "TWO"}, m[4]], 0, "edited_history"),
        (lambda m: [m[0], m[4]], None, "compaction"),
        (lambda m: [user("unheard of")], None, "new_conversation"),
        (lambda m: m[:1], None, "resampled"),
        (lambda m: m[:3], 0, None),
    ],
)
def test_each_edit_has_its_reason_and_never_a_wrong_parent(policy, change, parent, reason):
    history = [user("count")]
    for text in ("one", "two"):
        history += [policy.answer(history, text).response, user("on")]
    turn = policy.answer(change(history), "three")
    assert (turn.parent, turn.branch_reason) == (parent, reason)


def test_other_tools_start_a_branch(policy):
    first = policy.answer([user("go")], "ok", tools=[ADD])
    second = policy.answer([user("go"), first.response, user("on")], "ok")
    assert (second.parent, second.branch_reason) == (None, "tools_changed")
    third = policy.answer([user("go"), first.response, user("on")], "ok", tools=[ADD])
    assert (third.parent, third.branch_reason) == (0, None)


def test_a_template_that_drops_reasoning_is_noticed(tmp_path):
    renderer = TemplateRenderer(make_tokenizer_folder(tmp_path, QWEN_LIKE))
    policy = Policy(renderer)
    first = policy.answer([user("go")], "<think>hm</think>ok")
    second = policy.answer([user("go"), first.response, user("on")], "ok")
    assert (second.parent, second.branch_reason) == (None, "template_not_append_only")
    third = policy.answer([user("go"), first.response, user("on"), second.response, user("on")], "ok")
    assert (third.parent, third.branch_reason) == (1, None)


def test_a_template_without_an_end_token_is_not_continued(tmp_path):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    policy = Policy(TemplateRenderer(make_tokenizer_folder(tmp_path, template)))
    first = policy.answer([user("go")], "ok")
    second = policy.answer([user("go"), first.response, user("on")], "ok")
    assert (second.parent, second.branch_reason) == (None, "template_not_append_only")


def test_without_a_renderer_turns_have_parents_and_no_tokens():
    tree = ConversationTree(None)
    policy = Policy(None)
    placement = tree.place([user("go")], [])
    turn = policy.turn(placement, [], {"role": "assistant", "content": "ok"}, [])
    tree.add(turn, placement)
    second = tree.place([user("go"), turn.response, user("on")], [])
    assert (placement.parent, second.parent, second.prompt_ids) == (None, 0, [])


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda t: "<|" not in t)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
CALLS = st.lists(st.dictionaries(TEXT, VALUE, max_size=3), min_size=1, max_size=3)
ANSWER = st.one_of(
    TEXT,
    st.sampled_from(
        ["", " ", "trailing ", "\n", "é", "😀", "<tool_call>", '<tool_call>{"name": "add", "argu']
    ),
    st.tuples(TEXT, CALLS).map(lambda drawn: drawn[0] + "".join(as_call(a) for a in drawn[1])),
)


def as_call(arguments):
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments}, ensure_ascii=False)}</tool_call>"


def respelled(message, draw):
    """The message as some framework might send it back."""
    sent = copy.deepcopy(message)
    if draw(st.booleans()):
        cut = draw(st.integers(0, len(sent["content"])))
        texts = (sent["content"][:cut], sent["content"][cut:])
        sent["content"] = [{"type": "text", "text": text} for text in texts]
    elif not sent["content"]:
        sent["content"] = None
    for call in sent.get("tool_calls", []):
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            continue
        function["arguments"] = json.dumps(
            arguments, sort_keys=draw(st.booleans()), indent=draw(st.none() | st.just(2))
        )
    return sent


def replies(message, draw):
    calls = message.get("tool_calls")
    if not calls:
        return [user(draw(TEXT))]
    return [{"role": "tool", "tool_call_id": call["id"], "content": draw(TEXT)} for call in calls]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_conversations_that_only_grow_never_break(data, renderer):
    policy = Policy(renderer)
    messages = [{"role": "system", "content": data.draw(TEXT)}, user(data.draw(TEXT))]
    for _ in range(data.draw(st.integers(2, 5))):
        turn = policy.answer(messages, data.draw(ANSWER), tools=[ADD], cut=data.draw(st.booleans()))
        messages = [*messages, respelled(turn.response, data.draw), *replies(turn.response, data.draw)]
    for before, turn in pairwise(policy.turns):
        assert (turn.parent, turn.branch_reason) == (before.ordinal, None)
        known = before.prompt_ids + before.completion_ids
        assert turn.prompt_ids[: len(known)] == known
        new_text = renderer.decode(turn.prompt_ids[len(known) :])
        assert new_text.endswith("<|im_start|>assistant\n")
    assert renderer.decode(policy.turns[0].prompt_ids) == renderer.render(
        policy.turns[0].messages, [ADD], reply=True
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_edited_conversation_never_continues_a_turn_that_it_does_not_contain(data, renderer):
    policy = Policy(renderer)
    messages = [user(data.draw(TEXT))]
    for _ in range(3):
        turn = policy.answer(messages, data.draw(ANSWER), tools=[ADD])
        messages = [*messages, turn.response, *replies(turn.response, data.draw)]
    edited = data.draw(st.integers(0, len(messages) - 2))
    messages = copy.deepcopy(messages)
    messages[edited]["content"] += data.draw(TEXT.filter(bool))
    turn = policy.answer(messages, "done", tools=[ADD])
    if turn.parent is not None:
        parent = policy.turns[turn.parent]
        assert len(parent.messages) < edited
        assert turn.branch_reason == "edited_history" or all(
            message["role"] != "assistant" for message in messages[len(parent.messages) + 1 :]
        )
    else:
        assert turn.branch_reason is not None


ENDS_DIFFERENTLY = """
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last %}(the last) {% endif %}{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


def test_a_prompt_that_repeats_parent_and_answer_letter_for_letter_continues_whatever_the_template_does_alone(
    tmp_path,
):
    renderer = TemplateRenderer(make_tokenizer_folder(tmp_path, ENDS_DIFFERENTLY))
    policy = Policy(renderer)
    first = policy.answer([user("go")], "ok")
    second = policy.answer([user("go"), first.response, user("on")], "fine")
    assert (second.parent, second.branch_reason) == (0, None)
    assert renderer.decode(second.prompt_ids) == renderer.render(second.messages, [], reply=True)
    # Without the text of the latest turn there is only the template's spelling, and that is no prefix.
    third = policy.answer([user("go"), first.response, user("other")], "fine")
    assert (third.parent, third.branch_reason) == (None, "template_not_append_only")
