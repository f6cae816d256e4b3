import pytest

from osmosis_ai.errors import ProviderError
from osmosis_ai.providers.base import ProviderRequest
from osmosis_ai.providers.scripted import ScriptedProvider, count_words


def request(*messages, seed=0):
    return ProviderRequest(messages=list(messages), tools=[], params={}, seed=seed)


USER = {"role": "user", "content": "two words"}


async def test_mistakes_on_purpose_depend_on_the_seed_alone():
    provider = ScriptedProvider(lambda messages, tools, random: {"content": str(random.random() < 0.25)})
    first = [(await provider.complete(request(USER, seed=seed))).message for seed in range(40)]
    again = [(await provider.complete(request(USER, seed=seed))).message for seed in range(40)]
    assert first == again
    assert {message["content"] for message in first} == {"True", "False"}


async def test_texts_follow_the_conversation_and_run_out_with_a_message():
    provider = ScriptedProvider.from_texts(["one", {"content": "two"}])
    first = await provider.complete(request(USER))
    assert (first.message, first.finish_reason) == ({"role": "assistant", "content": "one"}, "stop")
    assert (first.prompt_tokens, first.completion_tokens) == (2, 1)
    second = await provider.complete(request(USER, first.message, USER))
    assert second.message["content"] == "two"
    with pytest.raises(ProviderError, match="2 answers and the conversation asks for number 3"):
        await provider.complete(request(USER, first.message, USER, second.message))


async def test_a_script_that_raises_or_answers_nonsense_is_named():
    def broken(messages, tools, random):
        return 1 / 0

    with pytest.raises(ProviderError, match="broken raised ZeroDivisionError"):
        await ScriptedProvider(broken).complete(request(USER))
    with pytest.raises(ProviderError, match="must be a message"):
        await ScriptedProvider(lambda *_: "text").complete(request(USER))


def test_words_of_tool_calls_count():
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    assert count_words({"content": None, "tool_calls": [call]}) == 3
    assert count_words({"content": [{"type": "text", "text": "two words"}]}) == 2
