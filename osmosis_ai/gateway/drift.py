"""Why calls of stored rollouts began a branch, what that cost, and what to change in the agent.

A call that continues the conversation keeps every token that was sampled. One that does not is rendered
afresh: what the policy once sampled stands in its prompt as text that was tokenised again. The store says
*that* a call branched (`Turn.branch_reason`); here the call is laid beside the earlier turn that it looks
most like, and the first message that differs says *why*:

    turn 3   [system "It is 10:03.", user "2 * 3?"]  answer <call mul>, 12 sampled tokens
    turn 4   [system "It is 10:04.", user "2 * 3?", assistant <call mul>, tool "6"]
    ->       cause instructions_changed, in message 0: '10:03.' became '10:04.'
             60 prompt tokens computed again, 12 sampled tokens read again as text
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_ai.gateway.messages import comparable_arguments, fingerprint
from osmosis_ai.types import Message, ToolSchema, Turn

SNIPPET = 24  # characters shown around a difference

ADVICE = {
    "instructions_changed": (
        "Build the system message once per rollout. What changes (time, memory, notes) belongs in a new "
        "message at the end."
    ),
    "user_message_changed": (
        "Send earlier user messages back as they were. Append what is new as a message."
    ),
    "tool_result_changed": (
        "Send earlier tool results back as they were. If they are too long, cut them before they are sent "
        "the first time."
    ),
    "answer_trimmed": (
        "The agent strips white space from the model's answers. Send an answer back as it came."
    ),
    "answer_changed": (
        "The agent rewrites the model's answers (parsing, redacting, removing reasoning). Send the "
        "assistant message back as it came."
    ),
    "arguments_changed": (
        "The agent rewrites the arguments of tool calls (defaults filled in, true as 1, numbers as text). "
        "Send tool_calls back as they came."
    ),
    "call_ids_changed": "The agent makes its own ids of tool calls. Keep those that came.",
    "calls_changed": (
        "The agent drops or renames tool calls, or merges answers. Keep all calls of an answer in one "
        "assistant message."
    ),
    "messages_inserted": "The agent puts messages between earlier ones. Append them at the end.",
    "messages_dropped": (
        "The agent drops or summarises earlier messages. Do it rarely and in large pieces: each time "
        "costs one branch."
    ),
    "history_replaced": (
        "The call has another history. If it is another conversation, give it a sample id of its own "
        "(x-sample-id)."
    ),
    "tools_changed": (
        "Offer the same tools in every call of a conversation; forbid one with tool_choice, or by the "
        "result that it gives."
    ),
    "template_not_append_only": (
        "The chat template rewrites earlier messages (often: it strips reasoning). Use a template that "
        "only appends; docs/tokens.md says how that is checked."
    ),
    "resampled": (
        "The same first call was made again: a retry without the client's retry header, or several "
        "candidates. For candidates use n, or a sample id for each."
    ),
    "new_conversation": (
        "Two conversations share a sample id. Give each agent its own (x-sample-id, or the name of the "
        "agent)."
    ),
}


@dataclass(frozen=True, slots=True)
class Break:
    """A call that does not continue the latest turn of its sample, and why."""

    rollout_id: str
    sample_id: str
    ordinal: int
    reason: str  # the tree's word
    cause: str  # a key of ADVICE
    where: str  # the place of the first difference, and what became of it; "" where the cause says it all
    prompt_tokens: int  # computed again
    reread_tokens: int  # sampled before, and now in the prompt as text


def breaks(turns: Sequence[Turn]) -> list[Break]:
    """The breaks of one rollout, in the order of its calls."""
    found = []
    for position, turn in enumerate(turns):
        if turn.branch_reason is None:
            continue
        before = [earlier for earlier in turns[:position] if earlier.sample_id == turn.sample_id]
        nearest, same = _nearest(turn, before)
        cause, where = _cause(turn, nearest, same)
        kept = _ancestors(turn, turns)
        reread = sum(
            earlier.completion_tokens
            for earlier in _ancestors(nearest, turns)
            if earlier not in kept and _brought_back(earlier, turn)
        )
        again = turn.prompt_tokens if turn.parent is None else 0
        found.append(
            Break(
                turn.rollout_id, turn.sample_id, turn.ordinal, turn.branch_reason, cause, where, again, reread
            )
        )
    return found


def _nearest(turn: Turn, before: Sequence[Turn]) -> tuple[Turn, int]:
    """The earlier turn that the call shares most messages with (the latest such), and how many."""
    prints = [fingerprint(message) for message in turn.messages]

    def shared(earlier: Turn) -> int:
        theirs = [fingerprint(message) for message in (*earlier.messages, earlier.response)]
        same = 0
        for ours, other in zip(prints, theirs, strict=False):
            if ours != other:
                break
            same += 1
        return same

    lengths = [(shared(earlier), position) for position, earlier in enumerate(before)]
    same, position = max(lengths, default=(0, -1))
    return (before[position], same) if before else (turn, 0)


def _ancestors(turn: Turn, turns: Sequence[Turn]) -> list[Turn]:
    """The turn and those whose tokens its prompt continues."""
    by_ordinal = {other.ordinal: other for other in turns}
    path = [turn]
    while path[-1].parent is not None:
        path.append(by_ordinal[path[-1].parent])
    return path


def _brought_back(earlier: Turn, turn: Turn) -> bool:
    """Whether the call has an assistant message where the earlier turn's answer was."""
    place = len(earlier.messages)
    return place < len(turn.messages) and turn.messages[place]["role"] == "assistant"


def _cause(turn: Turn, nearest: Turn, same: int) -> tuple[str, str]:
    reason = str(turn.branch_reason)
    if reason == "tools_changed":
        return reason, _tools_difference(nearest.tools, turn.tools)
    if reason not in ("edited_history", "compaction"):
        return reason, ""
    history = [*nearest.messages, nearest.response]
    if same >= min(len(history), len(turn.messages)):
        return "messages_dropped", f"{len(turn.messages)} messages, {len(history)} before"
    was, now = history[same], turn.messages[same]
    cause, detail = _difference(was, now, history[same + 1 :], turn.messages[same + 1 :])
    return cause, f"message {same} ({was['role']}): {detail}"


def _difference(
    was: Message, now: Message, later_before: Sequence[Message], later_now: Sequence[Message]
) -> tuple[str, str]:
    """What became of the first message that is not as it was."""
    if any(fingerprint(message) == fingerprint(now) for message in later_before):
        return "messages_dropped", f"{_snippet(was)} is not there any more"
    if any(fingerprint(message) == fingerprint(was) for message in later_now):
        return "messages_inserted", f"{_snippet(now)} stands before it"
    if was["role"] != now["role"]:
        return "history_replaced", f"{_snippet(was)} became {now['role']} {_snippet(now)}"
    if was["role"] == "assistant":
        return _answer_difference(was, now)
    causes = {"user": "user_message_changed", "tool": "tool_result_changed"}
    cause = causes.get(was["role"], "instructions_changed")
    if was.get("tool_call_id") != now.get("tool_call_id"):
        return "call_ids_changed", f"{was.get('tool_call_id')} became {now.get('tool_call_id')}"
    return cause, _text_difference(_text(was), _text(now))


def _answer_difference(was: Message, now: Message) -> tuple[str, str]:
    calls_before, calls_now = was.get("tool_calls") or [], now.get("tool_calls") or []
    if [call["function"]["name"] for call in calls_before] != [
        call["function"]["name"] for call in calls_now
    ]:
        return "calls_changed", f"{len(calls_before)} tool calls became {len(calls_now)}"
    for before, after in zip(calls_before, calls_now, strict=True):
        old, new = before["function"]["arguments"], after["function"]["arguments"]
        if comparable_arguments(old) != comparable_arguments(new):
            return "arguments_changed", _text_difference(old, new)
    if _text(was) == _text(now) and [c.get("id") for c in calls_before] != [c.get("id") for c in calls_now]:
        return "call_ids_changed", f"{calls_before[0].get('id')} became {calls_now[0].get('id')}"
    cause = "answer_trimmed" if _text(was).strip() == _text(now).strip() else "answer_changed"
    return cause, _text_difference(_text(was), _text(now))


def _tools_difference(before: Sequence[ToolSchema], now: Sequence[ToolSchema]) -> str:
    old = {str(tool.get("function", {}).get("name")): tool for tool in before}
    new = {str(tool.get("function", {}).get("name")): tool for tool in now}
    parts = [f"{name} added" for name in new if name not in old]
    parts += [f"{name} removed" for name in old if name not in new]
    parts += [f"{name} changed" for name in new if name in old and new[name] != old[name]]
    return ", ".join(parts) or "the same tools in another order"


def _text_difference(was: str, now: str) -> str:
    """ "It is 10:03." and "It is 10:04." -> "'It is 10:03.' became 'It is 10:04.'", long texts cut."""
    start = 0
    while start < min(len(was), len(now)) and was[start] == now[start]:
        start += 1
    first = max(0, start - SNIPPET // 2)
    return f"{_cut(was, first)} became {_cut(now, first)}"


def _cut(text: str, start: int) -> str:
    piece = text[start : start + SNIPPET]
    return f"{'…' if start else ''}{piece!r}{'…' if start + SNIPPET < len(text) else ''}"


def _snippet(message: Message) -> str:
    return _cut(_text(message), 0)


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
