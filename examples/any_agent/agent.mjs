// The same agent in Node with OpenAI's own client, over the Responses API. `npm install` first.
// The client reads OPENAI_BASE_URL and OPENAI_API_KEY by itself.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const client = new OpenAI();
const number = { type: "integer" };
const tools = [{
  type: "function",
  name: "multiply",
  description: "Multiply two integers.",
  parameters: { type: "object", properties: { a: number, b: number }, required: ["a", "b"] },
}];

function multiply(call) {
  try {
    const { a, b } = JSON.parse(call.arguments);
    return String(a * b);
  } catch (error) {
    return `Error: ${error.message}`;
  }
}

let input = [{ role: "user", content: readFileSync(0, "utf8") }];
for (let calls = 0; calls < 4; calls++) {
  const stream = client.responses.stream({ model: "osmosis-rollout", input, tools, store: false });
  const response = await stream.finalResponse();
  const wanted = response.output.filter((item) => item.type === "function_call");
  if (wanted.length === 0) {
    console.log(response.output_text);
    process.exit(0);
  }
  const sent = response.output.map(({ parsed_arguments, ...item }) => item);
  const results = wanted.map((call) => ({
    type: "function_call_output", call_id: call.call_id, output: multiply(call),
  }));
  input = [...input, ...sent, ...results];
}
console.log("no answer after four calls");
