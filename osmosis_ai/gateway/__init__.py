"""The endpoint that routes LLM calls and records each as a turn: OpenAI's wires and Anthropic's.

app.py          Gateway: server, routes, from a request to its attempt
exchange.py     one call on its way: answer, record, respond
identity.py     whose call is it: key, headers and path lead to one rollout
retries.py      READ THIS: when is an equal call a retry, and when a call of its own
notes.py        what is written beside each turn for a gateway that is started again; restoring.py reads it
terms.py        what `admit` is told of a rollout
dialects/       one wire API per file <-> call.py, the one typed call inside
messages.py     messages in canonical form, and when two of them are the same
tree.py         READ THIS: which tokens a call's prompt consists of, with a proof
text_prompts.py the same for raw text prompts
words.py        tokens of ASCII text word by word, for byte-level tokenizers
render.py       messages -> text -> tokens -> text, by the policy's own template
stops.py        where a stop text cuts an answer, in text and in tokens
targets.py      who answers: the policy (an engine) or a provider
capture.py      one rollout while it runs: its trees, its turns, its counts
server.py       HTTP/1.1: whole requests in, whole answers or streams out
streams.py      streams of events, heartbeats, refusals
asgi.py         other applications on the same port: callbacks

Several processes: base.py is the controller's seam to one gateway or to a fleet.py of them; each is a
process.py from outside and a worker.py from inside, and hands callbacks on by forward.py.
"""
