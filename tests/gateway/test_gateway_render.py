import random

import pytest
from gateway_parts import ADD, user
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.errors import UsageError
from osmosis_ai.gateway.render import TemplateRenderer, TextStream
from osmosis_ai.gateway.tree import TemplateRefusedError

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    user("2 plus 3? 😀"),
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "5"},
]


def as_recorded(messages):
    calls = [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}]
    return [{**m, "tool_calls": calls} if "tool_calls" in m else m for m in messages]


@pytest.mark.parametrize("reply", [True, False])
@pytest.mark.parametrize("tools", [[], [ADD]])
def test_text_and_tokens_are_those_of_apply_chat_template(folder, renderer, reply, tools):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for size in range(1, len(CONVERSATION) + 1):
        text = renderer.render(as_recorded(CONVERSATION[:size]), tools, reply=reply)
        options = {"tools": tools or None, "add_generation_prompt": reply}
        assert text == tokenizer.apply_chat_template(CONVERSATION[:size], tokenize=False, **options)
        expected = tokenizer.apply_chat_template(CONVERSATION[:size], **options)["input_ids"]
        assert renderer.encode(text) == expected


def test_developer_is_system_and_reasoning_is_not_shown(renderer):
    older = [{"role": "system", "content": "x"}, {"role": "assistant", "content": "y"}]
    newer = [
        {"role": "developer", "content": "x"},
        {"role": "assistant", "content": "y", "reasoning_content": "because"},
    ]
    assert renderer.render(newer, [], reply=True) == renderer.render(older, [], reply=True)


def test_the_end_of_a_rendered_conversation_is_found(renderer):
    end = renderer.end_ids[0]
    assert renderer.end_of("a<|im_end|>b<|im_end|>\n") == (end, "\n")
    assert renderer.end_of("a<|im_end|>b") is None
    assert renderer.end_of("a") is None
    assert renderer.encode_after(end, "\nhello") == renderer.encode("<|im_end|>\nhello")[1:]


def test_a_template_that_refuses_says_why(tmp_path):
    from gateway_parts import make_tokenizer_folder

    template = "{{ raise_exception('roles must alternate') }}"
    renderer = TemplateRenderer(make_tokenizer_folder(tmp_path, template))
    with pytest.raises(TemplateRefusedError, match="roles must alternate"):
        renderer.render([user("x")], [], reply=True)


def test_a_folder_without_a_tokenizer_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="holds no tokenizer"):
        TemplateRenderer(tmp_path)


def streamed(renderer, ids, *, tool_calls):
    stream = TextStream(renderer.decode, tool_calls=tool_calls)
    return [stream.push(token_id) for token_id in ids]


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_streamed_text_is_a_growing_prefix_of_the_whole(renderer, text):
    ids = renderer.encode(text)
    pieces = streamed(renderer, ids, tool_calls=False)
    assert renderer.decode(ids).startswith("".join(pieces))
    if text and "\ufffd" not in text:
        assert "".join(pieces) == text


@pytest.mark.parametrize("seed", range(20))
def test_random_tokens_stream_to_a_prefix_of_their_text(renderer, seed):
    chooser = random.Random(seed)
    ids = [chooser.randrange(300) for _ in range(40)]
    assert renderer.decode(ids).startswith("".join(streamed(renderer, ids, tool_calls=False)))


def test_what_could_become_a_tool_call_is_held_back(renderer):
    ids = [token_id for letter in "Su <to<too" for token_id in renderer.encode(letter)]
    assert "".join(streamed(renderer, ids, tool_calls=True)) == "Su <to"
    ids = renderer.encode("\n \n<tool_call>{}</tool_call> and more")
    assert "".join(streamed(renderer, ids, tool_calls=True)) == ""
    ids = renderer.encode("Yes. <tool_call>{}</tool_call> and more")
    assert "".join(streamed(renderer, ids, tool_calls=True)) == "Yes. "


@pytest.mark.parametrize(
    "expression",
    [
        "' a,b '.strip().split(',') | join('-')",
        "messages[0].content.startswith('h') and 'X'.lower()",
        "'{0.__class__}'.format(messages)",
        "'{a.__class__}'.format_map({'a': 1})",
        "('{0.__class__}'.format)(1)",
        "''.__class__.__mro__",
        "messages.append(1)",
        "' '.join(['a', 'b'], 1)",
    ],
)
def test_the_sandbox_is_that_of_transformers(expression):
    from transformers.utils.chat_template_utils import _compile_jinja_template

    from osmosis_ai.gateway.template import ChatTemplate

    def outcome(render):
        try:
            return render()
        except Exception as error:
            return type(error)

    source, messages = "{{ " + expression + " }}", [user("hello")]
    plain = _compile_jinja_template.__wrapped__(source)
    expected = outcome(lambda: plain.render(messages=list(messages)))
    assert outcome(lambda: ChatTemplate(source, {}).render(messages, [], reply=False)) == expected
