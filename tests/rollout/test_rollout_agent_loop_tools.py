"""Tools of an agent loop: schemas without loss, calls with their mistakes, results in order."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster_stub import ADD

from osmosis_ai.rollout import tools, utils
from osmosis_ai.rollout.core.schemas import (
    InitResponse,
    OpenAIFunctionCallSchema,
    OpenAIFunctionParametersSchema,
    OpenAIFunctionParsedSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
    wire_tools,
)
from osmosis_ai.rollout.tools import (
    ToolArgumentError,
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
    serialize_tool_result,
)

SEEDS = Path(__file__).parents[1] / "seeds"


def seed(name):
    variables = {}
    exec((SEEDS / f"seed_003_{name}.py").read_text(), variables)
    return variables


def call(arguments, name="add", call_id="call_1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# --- R4, R5: schemas


def test_r04_r05_the_documents_two_spellings_of_a_tool_are_the_same_on_the_wire():
    assert wire_tools(seed("tool_schemas")["TOOLS"]) == seed("tool_dicts")["TOOLS"]


def test_r04_a_dict_goes_over_the_wire_as_it_is():
    response = InitResponse(rollout_id="r", tools=[ADD])
    assert response.model_dump()["tools"] == [ADD]
    assert response.tools[0] is not ADD


def test_r05_a_schema_object_keeps_everything_that_the_author_gave():
    properties = {
        "numbers": OpenAIFunctionPropertySchema(type="array", items={"type": "number"}, default=[0]),
        "round": OpenAIFunctionPropertySchema(anyOf=[{"type": "integer"}, {"type": "null"}], default=None),
        "how": OpenAIFunctionPropertySchema(
            type="object", properties={"deep": {"type": "string", "enum": ["a", None]}}
        ),
    }
    parameters = OpenAIFunctionParametersSchema(properties=properties, additionalProperties=False)
    function = OpenAIFunctionSchema(name="add", description="Add numbers", parameters=parameters)
    assert wire_tools([OpenAIFunctionToolSchema(function=function)]) == [ADD]


def test_r05_a_schema_object_reads_the_json_of_any_tool_and_gives_it_back():
    assert wire_tools([OpenAIFunctionToolSchema.model_validate(ADD)]) == [ADD]
    bare = {"type": "function", "function": {"name": "now"}}
    assert wire_tools([OpenAIFunctionToolSchema.model_validate(bare)]) == [bare]


@pytest.mark.parametrize("tool", ["add", {"type": "function", "function": {"name": {1, 2}}}])
def test_r04_what_is_no_tool_is_an_error_that_names_its_place(tool):
    with pytest.raises(TypeError, match="tool 1 "):
        wire_tools([ADD, tool])


# --- R6: helpers


def test_r06_results_are_tool_messages():
    assert create_tool_result("c", "6") == {"role": "tool", "content": "6", "tool_call_id": "c"}
    assert create_tool_error_result("c", "no")["content"] == "Error: no"


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é", "é"), (6, "6"), (1.5, "1.5"), (True, "true"), (None, "null"), ([1, "é"], '[1, "é"]'),
        ({"a": 1}, '{"a": 1}'), (Point(2), '{"x": 2}'), ({3, 1}, "[1, 3]"), (Path("a"), '"a"'),
    ],
)  # fmt: skip
def test_r06_a_value_becomes_text(value, text):
    assert serialize_tool_result(value) == text


@pytest.mark.parametrize("arguments", ['{"a": 2}', {"a": 2}])
def test_r06_a_call_is_taken_apart(arguments):
    assert get_tool_call_info(call(arguments)) == ("call_1", "add", {"a": 2})


@pytest.mark.parametrize("arguments", ["", " ", None])
def test_r06_no_arguments_are_no_mistake(arguments):
    assert get_tool_call_info(call(arguments)) == ("call_1", "add", {})


@pytest.mark.parametrize("arguments", ['{"a": 2', "[2]", "2", 7.5])
def test_r06_arguments_that_cannot_be_read_name_their_call(arguments):
    with pytest.raises(tools.ToolArgumentError) as caught:
        get_tool_call_info(call(arguments))
    assert (caught.value.tool_call_id, caught.value.tool_name) == ("call_1", "add")


@pytest.mark.parametrize("broken", [{}, {"id": "c"}, {"id": "c", "function": {}}, "no dict"])
def test_r06_a_call_without_a_function_is_an_argument_error(broken):
    with pytest.raises(ToolArgumentError, match="names no function"):
        get_tool_call_info(broken)


async def test_r06_calls_run_at_the_same_time_and_keep_their_order():
    running = []

    async def executor(tool_call):
        running.append(tool_call["id"])
        await asyncio.sleep(0.02 if tool_call["id"] == "a" else 0)
        return create_tool_result(tool_call["id"], str(len(running)))

    results = await execute_tool_calls([call("{}", call_id="a"), call("{}", call_id="b")], executor)
    assert [(r["tool_call_id"], r["content"]) for r in results] == [("a", "2"), ("b", "2")]
    assert await execute_tool_calls(None, executor) == []


async def test_r06_an_executor_that_fails_gives_its_own_call_an_error_and_no_other():
    async def executor(tool_call):
        if tool_call["id"] == "raises":
            raise ZeroDivisionError("division by zero")
        if tool_call["id"] == "unreadable":
            get_tool_call_info(call("{", call_id="unreadable"))
        return None if tool_call["id"] == "nothing" else create_tool_result(tool_call["id"], "6")

    ids = ["raises", "good", "unreadable", "nothing"]
    results = await execute_tool_calls([call("{}", call_id=i) for i in ids], executor)
    assert [result["tool_call_id"] for result in results] == ids
    assert [result["content"].split(": Expecting")[0] for result in results] == [
        "Error: division by zero",
        "6",
        "Error: the arguments are not JSON",
        "Error: the tool gave no result message but None",
    ]


async def test_r06_the_documents_executors_run():
    module = seed("tool_execution")

    async def do_search(query):
        return {"found": query}

    module["do_search"] = do_search
    execute_tool = module["execute_tool"]
    assert (await execute_tool(call('{"query": "x"}', "search")))["content"] == '{"found": "x"}'
    assert (await execute_tool(call("{}", "other")))["content"] == "Error: Unknown tool: other"
    assert (await execute_tool(call("{", "search")))["content"].startswith("Error: the arguments are not")
    results = await seed("parallel_tools")["execute_all"]([call("{}")])
    assert [result["tool_call_id"] for result in results] == ["call_1"]


def test_a_parsed_call_tells_whether_its_arguments_could_be_read():
    read = OpenAIFunctionCallSchema.from_openai_function_parsed_schema
    good, failed = read(OpenAIFunctionParsedSchema(name="add", arguments='{"a": 1}'))
    assert (good.arguments, failed) == ({"a": 1}, False)
    bad, failed = read(OpenAIFunctionParsedSchema(name="add", arguments="[1]"))
    assert (bad.arguments, failed) == ({}, True)


def test_message_helpers():
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"text": "b"}]}, {}]
    assert utils.count_messages_by_role(messages) == {"user": 1, "assistant": 1, "unknown": 1}
    assert [utils.get_message_content(message) for message in messages] == ["a", "b", ""]
    assert (utils.is_user_message(messages[0]), utils.is_tool_message(messages[0])) == (True, False)
    assert utils.parse_tool_calls({"tool_calls": None}) == []
    assert [utils.normalize_stop(stop) for stop in ("x", ["x"], None)] == [["x"], ["x"], None]
