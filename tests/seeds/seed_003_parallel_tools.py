# ruff: noqa
# fmt: off
# A code block of seed document 003; the coroutine around its last statement, which it left out, is added.
from osmosis_ai.rollout.tools import execute_tool_calls

async def execute_my_tool(tool_call):
    # Your tool execution logic
    pass

# Execute all tool calls in parallel
async def execute_all(tool_calls):
    results = await execute_tool_calls(tool_calls, execute_my_tool)
    return results
