"""What `osmosis eval run eval.toml --limit 1` comes to in a project of `osmosis init`, written by hand.

    cd hello && python .../bench/by_hand.py

The agent is imported, the stand-in for the model answers over HTTP, the row is run as often as eval.toml
says, and graded. No configuration, no store, no process of its own for the agent, no report: the work, and no
more. `startup.py` starts it beside the command.
"""

import asyncio
import json
import sys
from pathlib import Path
from random import Random

ATTEMPTS = 2

sys.path.insert(0, str(Path.cwd()))

import agent  # noqa: E402
import model  # noqa: E402

from osmosis_ai.rollout import AgentWorkflowContext, GraderContext, RolloutContext  # noqa: E402


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One chat completion of model.py."""
    length = 0
    while (line := await reader.readline()).strip():
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    body = json.dumps(completion(json.loads(await reader.readexactly(length)))).encode()
    head = (
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n"
    )
    writer.write(head.format(len(body)).encode() + body)
    writer.close()


def completion(asked: dict) -> dict:
    message = {"role": "assistant", "content": None}
    message |= model.answer(asked["messages"], asked["tools"], Random(0))
    for number, call in enumerate(message.get("tool_calls", [])):
        function = call["function"]
        call |= {"id": f"call-{number}", "type": "function"}
        call["function"] = {**function, "arguments": json.dumps(function["arguments"])}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"id": "0", "object": "chat.completion", "created": 0, "model": "stand-in", "choices": [choice]}


async def rollout(url: str, row: dict) -> float | None:
    prompt = [{"role": "user", "content": row["user_prompt"]}]
    with RolloutContext(url, "key", "0") as context:
        await agent.OrderWorkflow().run(AgentWorkflowContext(prompt))
        samples = await context.get_samples()
    graded = GraderContext(row["ground_truth"], samples)
    await agent.OrderGrader().grade(graded)
    return graded.sample.reward


async def main() -> list[float | None]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    with open("data/orders.jsonl") as rows:  # noqa: ASYNC230
        row = json.loads(next(rows))
    return await asyncio.gather(*(rollout(url, row) for _ in range(ATTEMPTS)))


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(main())}\n")
