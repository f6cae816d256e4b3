"""The same agent in many programs: it adds with a tool until the model answers in words.

Each function runs one conversation through the wire that it is named after, with an unmodified client or
framework, and knows nothing but a base URL and a key. The model's answers are `ANSWERS`, one after the other.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

MODEL = "osmosis-rollout"
SYSTEM = "You add."
QUESTION = "2 plus 3?"
DESCRIPTION = "Add two numbers."
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
CALL_2_3 = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
CALL_4_5 = '<tool_call>{"name": "add", "arguments":{"b":5,"a":4}}</tool_call>'  # not as a template writes it
MALFORMED = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": }}</tool_call>'
ANSWERS = [CALL_2_3 + CALL_4_5, MALFORMED, "Let me see. " + CALL_2_3, "The answer is 5. "]


def add(arguments: str | dict[str, Any]) -> str:
    """What a careful agent answers to a call: the sum, or what is wrong with it."""
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
        return str(read["a"] + read["b"])
    except (ValueError, KeyError, TypeError) as error:
        return f"Error: the arguments are not readable: {error}"


# --- the official openai client


def openai_client(base_url: str, key: str) -> Any:
    import openai

    return openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0)


CHAT_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS},
}


async def openai_chat(base_url: str, key: str) -> str:
    client = openai_client(base_url, key)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    while True:
        answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = add(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def openai_chat_streamed(base_url: str, key: str) -> str:
    client = openai_client(base_url, key)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    while True:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=[CHAT_TOOL],
            stream=True,
            stream_options={"include_usage": True},
        )
        text, calls = "", []
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                calls += [call.model_dump(exclude={"index"}) for call in choice.delta.tool_calls or ()]
        messages.append(
            {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        )
        if not calls:
            return text
        for call in calls:
            result = add(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


RESPONSES_TOOL = {"type": "function", "name": "add", "description": DESCRIPTION, "parameters": PARAMETERS}


def _outputs(response: Any) -> list[dict[str, Any]]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": add(call.arguments)}
        for call in calls
    ]


async def openai_responses(base_url: str, key: str) -> str:
    client = openai_client(base_url, key)
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        response = await client.responses.create(
            model=MODEL, instructions=SYSTEM, input=items, tools=[RESPONSES_TOOL], store=False
        )
        items += [item.model_dump(exclude_none=True) for item in response.output]
        if not (outputs := _outputs(response)):
            return response.output_text
        items += outputs


async def openai_responses_streamed(base_url: str, key: str) -> str:
    client = openai_client(base_url, key)
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        async with client.responses.stream(
            model=MODEL, instructions=SYSTEM, input=items, tools=[RESPONSES_TOOL], parallel_tool_calls=True
        ) as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            response = await stream.get_final_response()
        assert "".join(texts) == response.output_text
        for item in response.output:
            raw = item.model_dump(exclude_none=True, exclude={"parsed_arguments"})
            for part in raw.get("content") or ():
                part.pop("parsed", None)
            items.append(raw)
        if not (outputs := _outputs(response)):
            return response.output_text
        items += outputs


async def openai_responses_by_name(base_url: str, key: str) -> str:
    """Names the answer before instead of sending the conversation again."""
    client = openai_client(base_url, key)
    items: Any = QUESTION
    previous = None
    while True:
        response = await client.responses.create(
            model=MODEL,
            instructions=SYSTEM,
            input=items,
            tools=[RESPONSES_TOOL],
            previous_response_id=previous,
        )
        previous = response.id
        if not (items := _outputs(response)):
            return response.output_text


# --- the official anthropic client


def anthropic_client(base_url: str, key: str) -> Any:
    import anthropic

    return anthropic.AsyncAnthropic(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0)


MESSAGES_TOOL = {"name": "add", "description": DESCRIPTION, "input_schema": PARAMETERS}


def _tool_results(message: Any) -> list[dict[str, Any]]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": add(block.input)}
        for block in message.content
        if block.type == "tool_use"
    ]


async def anthropic_messages(base_url: str, key: str) -> str:
    client = anthropic_client(base_url, key)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        message = await client.messages.create(
            model=MODEL, max_tokens=512, system=SYSTEM, messages=messages, tools=[MESSAGES_TOOL]
        )
        messages.append({"role": "assistant", "content": message.content})
        if message.stop_reason != "tool_use":
            return message.content[0].text
        messages.append({"role": "user", "content": _tool_results(message)})


async def anthropic_messages_streamed(base_url: str, key: str) -> str:
    client = anthropic_client(base_url, key)
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    while True:
        async with client.messages.stream(
            model=MODEL, max_tokens=512, system=system, messages=messages, tools=[MESSAGES_TOOL]
        ) as stream:
            texts = [text async for text in stream.text_stream]
            message = await stream.get_final_message()
        assert "".join(texts) == "".join(b.text for b in message.content if b.type == "text")
        messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
        if message.stop_reason != "tool_use":
            return message.content[0].text
        messages.append({"role": "user", "content": _tool_results(message)})


# --- frameworks


async def _run_strands(model: Any) -> str:
    from strands import Agent, tool

    @tool(name="add")
    def add_tool(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent = Agent(model=model, tools=[add_tool], system_prompt=SYSTEM, callback_handler=None)
    result = await agent.invoke_async(QUESTION)
    return "".join(block["text"] for block in result.message["content"] if "text" in block)


async def strands_openai(base_url: str, key: str) -> str:
    from strands.models.openai import OpenAIModel

    return await _run_strands(OpenAIModel(client_args={"base_url": base_url, "api_key": key}, model_id=MODEL))


async def strands_litellm(base_url: str, key: str) -> str:
    from strands.models.litellm import LiteLLMModel

    client_args = {"base_url": base_url, "api_key": key}
    return await _run_strands(LiteLLMModel(client_args, model_id=f"openai/{MODEL}"))


async def strands_anthropic(base_url: str, key: str) -> str:
    from strands.models.anthropic import AnthropicModel

    client_args = {"base_url": base_url.removesuffix("/v1"), "api_key": key}
    return await _run_strands(AnthropicModel(client_args=client_args, model_id=MODEL, max_tokens=512))


async def _run_openai_agents(model_type: str, base_url: str, key: str, *, streamed: bool = False) -> str:
    import agents

    @agents.function_tool(name_override="add")
    def add_tool(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    model = getattr(agents, model_type)(model=MODEL, openai_client=openai_client(base_url, key))
    agent = agents.Agent(name="adder", instructions=SYSTEM, model=model, tools=[add_tool])
    if streamed:
        result = agents.Runner.run_streamed(agent, QUESTION)
        async for _ in result.stream_events():
            pass
        return result.final_output
    return (await agents.Runner.run(agent, QUESTION)).final_output


async def openai_agents_chat(base_url: str, key: str) -> str:
    return await _run_openai_agents("OpenAIChatCompletionsModel", base_url, key)


async def openai_agents_chat_streamed(base_url: str, key: str) -> str:
    return await _run_openai_agents("OpenAIChatCompletionsModel", base_url, key, streamed=True)


async def openai_agents_responses(base_url: str, key: str) -> str:
    return await _run_openai_agents("OpenAIResponsesModel", base_url, key)


async def openai_agents_responses_streamed(base_url: str, key: str) -> str:
    return await _run_openai_agents("OpenAIResponsesModel", base_url, key, streamed=True)


TOOL_AGENTS = [
    openai_chat,
    openai_chat_streamed,
    openai_responses,
    openai_responses_streamed,
    openai_responses_by_name,
    anthropic_messages,
    anthropic_messages_streamed,
    strands_openai,
    strands_litellm,
    strands_anthropic,
    openai_agents_chat,
    openai_agents_chat_streamed,
    openai_agents_responses,
    openai_agents_responses_streamed,
]


# --- text alone: an agent that writes its own prompt, as before there were chats

REACT_ANSWERS = [" I add.\nCall: 2 3\nResult: 99", " I add again.\nCall: 4 5\nResult: 7", " The answer is 5."]
STOP = "\nResult:"


async def openai_completions(base_url: str, key: str, *, stream: bool = False) -> str:
    client = openai_client(base_url, key)
    prompt = f"{SYSTEM}\nQuestion: {QUESTION}\nThought:"
    while True:
        made = await client.completions.create(model=MODEL, prompt=prompt, stop=[STOP], stream=stream)
        if stream:
            text = "".join([chunk.choices[0].text async for chunk in made if chunk.choices])
        else:
            text = made.choices[0].text
        if "Call:" not in text:
            return text
        first, second = map(int, text.rsplit("Call:", 1)[1].split())
        prompt += f"{text}{STOP} {first + second}\nThought:"


async def openai_completions_streamed(base_url: str, key: str) -> str:
    return await openai_completions(base_url, key, stream=True)
