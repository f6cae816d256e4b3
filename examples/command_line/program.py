"""A command-line agent as anybody might have written it: `python program.py "What is 3 times 4?"`.

It knows OPENAI_BASE_URL and OPENAI_API_KEY and nothing else; only the standard library is used, so that it is
clear that nothing else helps.
"""

import json
import os
import sys
import urllib.error
import urllib.request

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
    for name in ("multiply", "add")
]


def call(path, body=None):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"].rstrip("/") + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        sys.exit(f"{error}: {error.read().decode()}")


def ask(model, messages):
    body = {"model": model, "messages": messages, "tools": TOOLS, "max_tokens": 64}
    return call("/chat/completions", body)["choices"][0]["message"]


def use_tool(function):
    try:
        given = json.loads(function["arguments"])
        a, b = given["a"], given["b"]
        return str(a * b if function["name"] == "multiply" else a + b)
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {error}"


def main():
    model = call("/models")["data"][0]["id"]  # whatever is served there
    messages = [{"role": "user", "content": sys.argv[1]}]
    for _ in range(4):
        message = ask(model, messages)
        messages.append(message)
        if not message.get("tool_calls"):
            print(message["content"])
            return
        for wanted in message["tool_calls"]:
            content = use_tool(wanted["function"])
            messages.append({"role": "tool", "tool_call_id": wanted["id"], "content": content})


main()
