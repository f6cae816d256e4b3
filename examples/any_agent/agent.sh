#!/usr/bin/env bash
# An agent of thirty lines of shell. It needs curl, Python to read JSON, and two variables that many programs
# know: OPENAI_BASE_URL and OPENAI_API_KEY. The question comes on stdin, the answer goes to stdout.
set -euo pipefail

question=$(cat)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" - "$question" > "$work/request" <<'END'
import json, sys
number = {"type": "integer"}
parameters = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
tool = {"name": "multiply", "description": "Multiply two integers.", "parameters": parameters}
messages = [{"role": "user", "content": sys.argv[1]}]
print(json.dumps({"model": "osmosis-rollout", "messages": messages,
                  "tools": [{"type": "function", "function": tool}]}))
END

for _ in 1 2 3 4; do
    curl --silent --show-error --fail-with-body --retry 2 "$OPENAI_BASE_URL/chat/completions" \
        --header "Authorization: Bearer $OPENAI_API_KEY" --header "Content-Type: application/json" \
        --data "@$work/request" > "$work/answer"
    # Prints "text ANSWER" or "call A B"; appends the model's message to the request.
    "$python" - "$work" > "$work/next" <<'END'
import json, sys
from pathlib import Path
work = Path(sys.argv[1])
request, answer = (json.loads((work / name).read_text()) for name in ("request", "answer"))
message = answer["choices"][0]["message"]
request["messages"].append(message)
(work / "request").write_text(json.dumps(request))
if message.get("tool_calls"):
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    print("call", int(arguments["a"]), int(arguments["b"]))
else:
    print("text", message["content"])
END
    read -r kind rest < "$work/next"
    if [ "$kind" = text ]; then
        sed '1s/^text //' "$work/next"
        exit 0
    fi
    read -r a b <<< "$rest"
    "$python" - "$work" "$((a * b))" <<'END'
import json, sys
from pathlib import Path
file = Path(sys.argv[1]) / "request"
request = json.loads(file.read_text())
calls = request["messages"][-1]["tool_calls"]
results = [sys.argv[2]] + ["one call at a time, please"] * (len(calls) - 1)
for call, result in zip(calls, results):
    request["messages"].append({"role": "tool", "tool_call_id": call["id"], "content": result})
file.write_text(json.dumps(request))
END
done
echo "no answer after four calls"
