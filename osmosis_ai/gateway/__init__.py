"""The OpenAI-compatible endpoint that routes LLM calls and records each as a turn.

app.py        Gateway: server, routes, one call from bytes to bytes
identity.py   whose call is it: key, headers and path lead to one rollout
dialects/     one wire API per file <-> call.py, the one typed call inside
messages.py   messages in canonical form, and when two of them are the same
tree.py       READ THIS: which tokens a call's prompt consists of, with a proof
render.py     messages -> text -> tokens -> text, by the policy's own template
targets.py    who answers: the policy (an engine) or a provider
capture.py    one rollout while it runs: its trees, its turns, its counts
"""
