"""A policy from nothing: an ordinary Hugging Face folder whose template only ever appends."""

import hashlib
import itertools
import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, AutoTokenizer

from osmosis_ai.engine.completions import parse_completion
from osmosis_ai.engine.policy import conversation_texts, new_policy
from osmosis_ai.errors import UsageError

STRANDS_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "Parameter a"},
                    "b": {"type": "integer", "description": "Parameter b"},
                },
                "required": ["a", "b"],
            },
        },
    }
    for name, description in (("multiply", "Multiply two integers."), ("add", "Add two integers."))
]
AGENTS_SDK_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "strict": True,
            "parameters": {
                "properties": {
                    "a": {"title": "A", "type": "integer"},
                    "b": {"title": "B", "type": "integer"},
                },
                "required": ["a", "b"],
                "title": f"{name}_args",
                "type": "object",
                "additionalProperties": False,
            },
        },
    }
    for name, description in (("multiply", "Multiply two integers."), ("add", "Add two integers."))
]


def call(name="multiply", arguments='{"a": 37, "b": 4}', id="call_1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "You are a calculator."}
USER = {"role": "user", "content": "What is 37 times 4?"}
CONVERSATIONS = {
    "one call": [
        SYSTEM,
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call()]},
        {"role": "tool", "tool_call_id": "call_1", "content": "148"},
        {"role": "assistant", "content": "The answer is 148."},
    ],
    "parallel calls, more text and a second question": [
        USER,
        {
            "role": "assistant",
            "content": "Both. ",
            "tool_calls": [call(), call("add", {"a": 1, "b": 2}, "call_2")],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "148"}]},
        {"role": "tool", "tool_call_id": "call_2", "content": "3"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Und höher? 💡 x²\n\n  indented\n"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "<think>hm</think>"}, {"type": "text", "text": "7"}],
        },
    ],
    "a malformed call, its error and a late system message": [
        SYSTEM,
        USER,
        {"role": "assistant", "tool_calls": [call(arguments='{"a": 37, "b": }')]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Error: not JSON {'a': 1}"},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "148", "tool_calls": []},
        {"role": "tool", "tool_call_id": "x", "content": ""},
        {"role": "developer", "content": "Go on."},
        {"role": "assistant", "content": "  \n"},
    ],
}


@pytest.fixture(scope="module")
def texts():
    return list(conversation_texts((messages, STRANDS_TOOLS) for messages in CONVERSATIONS.values()))


@pytest.fixture(scope="module")
def folder(texts, tmp_path_factory):
    return new_policy(tmp_path_factory.mktemp("made") / "policy", texts=texts, hidden_size=32, layers=1)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def render(tokenizer, messages, tools=None, add_generation_prompt=False):
    return tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
    )


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("tools", [None, STRANDS_TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_the_template_only_appends_in_text_and_in_tokens(tokenizer, messages, tools):
    whole = render(tokenizer, messages, tools)
    for end in range(1, len(messages)):
        start = render(tokenizer, messages[:end], tools)
        assert whole.startswith(start)
        assert ids(tokenizer, whole) == ids(tokenizer, start) + ids(tokenizer, whole.removeprefix(start))
        if messages[end]["role"] == "assistant":
            prompt = render(tokenizer, messages[:end], tools, add_generation_prompt=True)
            assert whole.startswith(prompt)
            assert ids(tokenizer, whole) == ids(tokenizer, prompt) + ids(
                tokenizer, whole.removeprefix(prompt)
            )


def test_any_order_of_messages_only_appends(tokenizer):
    kinds = [
        SYSTEM,
        USER,
        CONVERSATIONS["one call"][2],
        CONVERSATIONS["one call"][3],
        CONVERSATIONS["one call"][4],
    ]
    for messages in itertools.product(kinds, repeat=3):
        texts = [render(tokenizer, list(messages[:end]), STRANDS_TOOLS) for end in (1, 2, 3)]
        assert texts[1].startswith(texts[0]) and texts[2].startswith(texts[1])


def test_a_rendered_conversation_reads_like_this(tokenizer):
    assert render(tokenizer, CONVERSATIONS["one call"], STRANDS_TOOLS) == (
        "<|im_start|>system\n"
        "You are a calculator.\n"
        "\n"
        "Tools:\n"
        "multiply(a: integer, b: integer): Multiply two integers.\n"
        "add(a: integer, b: integer): Add two integers.<|im_end|>\n"
        "<|im_start|>user\n"
        "What is 37 times 4?<|im_end|>\n"
        "<|im_start|>assistant\n"
        '<tool_call>{"name": "multiply", "arguments": {"a": 37, "b": 4}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\n"
        "148<|im_end|>\n"
        "<|im_start|>assistant\n"
        "The answer is 148.<|im_end|>\n"
    )


def test_both_frameworks_tools_render_alike(tokenizer):
    assert render(tokenizer, [USER], STRANDS_TOOLS) == render(tokenizer, [USER], AGENTS_SDK_TOOLS)


def test_what_a_short_signature_cannot_say_is_written_as_json(tokenizer):
    parameters = {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["cm", "in"]},
            "digits": {"type": "integer", "description": "After the point", "default": 2},
        },
        "required": ["unit"],
    }
    tool = {"type": "function", "function": {"name": "convert", "parameters": parameters}}
    assert (
        'convert(unit: {"type": "string", "enum": ["cm", "in"]}, digits?: integer = 2 (After the point))'
        in render(tokenizer, [USER], [tool])
    )
    parameters["$defs"] = {"Unit": {"type": "string"}}
    assert f"convert({json.dumps(parameters)})" in render(tokenizer, [USER], [tool])


def test_arguments_as_object_and_as_text_render_alike(tokenizer):
    for arguments in ({"a": 37, "b": -4}, {"text": 'höher 💡 "x" <b>'}, {}):
        as_text = json.dumps(arguments, ensure_ascii=False)
        rendered = [
            render(tokenizer, [USER, {"role": "assistant", "tool_calls": [call("f", value)]}])
            for value in (arguments, as_text)
        ]
        assert rendered[0] == rendered[1]


def test_a_parsed_completion_renders_back_to_its_own_text(tokenizer):
    text = 'Both. <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    parsed = parse_completion(text)
    calls = [call(one.name, one.arguments) for one in parsed.tool_calls]
    message = {"role": "assistant", "content": parsed.content, "tool_calls": calls}
    prompt = render(tokenizer, [USER], STRANDS_TOOLS, add_generation_prompt=True)
    assert render(tokenizer, [USER, message], STRANDS_TOOLS) == prompt + text + "<|im_end|>\n"


def test_every_digit_is_one_token_and_boilerplate_is_few(tokenizer):
    for digit in "0123456789":
        assert len(ids(tokenizer, digit)) == 1
    assert len(ids(tokenizer, "314159")) == 6
    assert [
        tokenizer.decode([i]) for i in ids(tokenizer, '{"name": "multiply", "arguments": {"a": 37, "b": 4}}')
    ] == [
        '{"name": "multiply", "arguments": {"a": ',
        "3",
        "7",
        ', "b": ',
        "4",
        "}}",
    ]


def test_markup_is_one_token_each_and_calls_survive_a_decode(tokenizer):
    markup = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>"]
    assert [len(ids(tokenizer, token)) for token in markup] == [1, 1, 1, 1, 1]
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=True) == text


@pytest.mark.parametrize(
    "text", ["höher 💡 x²", " \n\t\r\n  two  spaces ", "\x00\x7f", "日本語 ٣٤", "a.b , c !"]
)
def test_any_text_comes_back_from_its_tokens(tokenizer, text):
    assert tokenizer.decode(ids(tokenizer, text)) == text


def test_the_folder_loads_and_scores_a_prompt(folder, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    batch = tokenizer(render(tokenizer, [USER], add_generation_prompt=True), return_tensors="pt")
    logits = model(input_ids=batch["input_ids"]).logits
    assert logits.shape == (1, batch["input_ids"].shape[1], len(tokenizer))
    assert model.config.model_type == "qwen3"
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.temperature == 0.99
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_same_arguments_give_the_same_bytes_and_another_seed_does_not(folder, texts, tmp_path):
    def digest(path: Path, name: str) -> str:
        return hashlib.sha256((path / name).read_bytes()).hexdigest()

    again = new_policy(tmp_path / "again", texts=texts, hidden_size=32, layers=1)
    other = new_policy(tmp_path / "other", texts=texts, hidden_size=32, layers=1, seed=1)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert digest(again, name) == digest(folder, name)
    assert digest(other, "model.safetensors") != digest(folder, "model.safetensors")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 100}, "vocab_size must be at least 265"),
        ({"hidden_size": 30}, "hidden_size must be a multiple of twice the heads"),
        ({"layers": 0}, "layers of a new policy must be at least 1, got 0"),
    ],
)
def test_impossible_sizes_say_what_is_possible(tmp_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        new_policy(tmp_path / "policy", texts=["x"], **arguments)


def test_a_policy_never_overwrites_a_folder(folder, texts):
    with pytest.raises(UsageError, match="is not empty"):
        new_policy(folder, texts=texts)
