"""The tree of turns of one sample: which tokens a call's prompt consists of.

The tokens that were sampled are the tokens that are trained, so text that was sampled is never tokenised
again. A call brings messages. The tree finds the longest recorded turn whose messages and answer they begin
with, keeps that turn's tokens as they are, and tokenises only what came after:

    turn 0   messages [user "2 times 3?"]
             prompt   "<start>user\\n2 times 3?<end>\\n<start>assistant\\n"
             ids      [1, 10, 11, 12, 2, 13, 1, 14]
             sampled  "<call>mul 2 3<end>", ids [20, 21, 22, 2]

    call     messages [user "2 times 3?", assistant <call>, tool "6"]
             closed   = template([user, assistant])       = "...<start>assistant\\n<call>mul 2 3<end>\\n"
             whole    = template([user, assistant, tool]) = closed + "<start>tool\\n6<end>\\n<start>assist..."
             new text = what `closed` has behind its last <end> ("\\n") + what `whole` has behind `closed`
             new ids  = [13, 1, 15, 16, 2, 13, 1, 14]

    turn 1   parent 0
             ids      [1, 10, 11, 12, 2, 13, 1, 14] + [20, 21, 22, 2] + [13, 1, 15, 16, 2, 13, 1, 14]

The sampled ids 20, 21, 22 stay, and what is proved is that the template only appends, in one of two ways:

- letter for letter: `whole` begins with the text that turn 0 was asked with and the text that it sampled, end
  token included. One rendering, and the usual case.
- in the template's spelling: it may write the answer in its own way (arguments in another order, white space
  cut off), as long as `whole` begins with `closed`, and `closed` ends with an end token (and white space).

An answer that was cut short (finish_reason "length") has no end token; the template's is put behind it as
context that nobody sampled. If there is no proof, the call is rendered from scratch: it has no parent, and
`branch_reason` says why.

A call costs one hash for each message that it brings, one or two renderings of the conversation, and the
tokenising of what is new. Of each turn the tree keeps the tokens that it adds, of the latest its text too.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import orjson

from osmosis_ai.gateway.messages import extend_chain, fingerprint, fingerprints_of_response
from osmosis_ai.types import Message, ToolSchema, Turn

BranchReason = Literal[
    "tools_changed",  # the messages continue an earlier turn, but the tools are others
    "template_not_append_only",  # they continue one, but the template rewrites what came before
    "resampled",  # the very messages of an earlier first turn: a retry, or several candidates
    "new_conversation",  # no message of it was seen before in this sample: a second agent under the same id
    "compaction",  # fewer messages than before: the agent summarised or dropped some
    "edited_history",  # an earlier message, or an answer of the policy, is not what it was
]


class TemplateRefusedError(ValueError):
    """The chat template does not take these messages; the text is the template's own."""


class Renderer(Protocol):
    """Messages to text to tokens and back, by the policy's own template and tokenizer."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, reply: bool) -> str:
        """The conversation as text; `reply` ends it with the header of the next assistant message.

        Raises TemplateRefusedError.
        """
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, list[int]]:
        """`render(messages, tools, reply=True)` and its tokens, perhaps remembered, in a list of their own.

        Raises TemplateRefusedError.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of a text that begins a prompt."""
        ...

    def encode_after(self, end_id: int, text: str) -> list[int]:
        """Tokens of a text that stands right behind the token `end_id`, that token not included."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special tokens included."""
        ...

    def special_id(self, text: str) -> int | None:
        """The token that is exactly `text`, if it is a special one."""
        ...

    def end_of(self, closed: str) -> tuple[int, str] | None:
        """The end token that closes the last message of a rendered text, and the white space behind it.

        "...<|im_end|>\\n" -> (id of <|im_end|>, "\\n"); None when the text does not end so.
        """
        ...


@dataclass(eq=False, slots=True)
class _Node:
    """What later calls need of a recorded turn. Its tokens are those that it adds to its parent's."""

    ordinal: int
    messages: list[Message]  # with the answer at the end
    tools_key: bytes
    parent: _Node | None
    new_ids: array[int]  # 4 bytes a token, and nothing that the garbage collector has to look through
    num_ids: int  # of prompt and completion, the parent's included
    num_sampled: int  # of these, at the end
    last_id: int | None  # the last sampled token

    def ids(self) -> list[int]:
        """All tokens of prompt and completion."""
        path = []
        node: _Node | None = self
        while node is not None:
            path.append(node.new_ids)
            node = node.parent
        ids: list[int] = []
        for new_ids in reversed(path):
            ids.extend(new_ids)
        return ids


@dataclass(eq=False, slots=True)
class _Latest:
    """The turn that most calls continue, with more of it than is kept of the others."""

    node: _Node
    ids: list[int]  # of prompt and completion
    rendered: str  # the template's text of its prompt
    closed: str | None = None  # and the sampled text behind it, once somebody asks
    ends: bool = False  # whether that is whole, with its end token


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a call stands in the tree of its sample.

    `branch_reason` without a parent: why the prompt starts afresh. With a parent: why it does not continue
    the latest turn that it looks like, but an earlier one, with later answers as mere context.
    """

    messages: list[Message]  # of the call; the part that continues the parent is the parent's own spelling
    prompt_ids: list[int]  # [P]; empty when a provider answers
    parent: int | None
    branch_reason: BranchReason | None
    prints: list[bytes]  # fingerprint of each message as the agent sent it
    chain: bytes  # fingerprint of all of them
    rendered: str = field(default="", kw_only=True)  # the template's text of `messages`, where one was made


class ConversationTree:
    """All turns of one sample. Without a renderer (a provider answers) there are no tokens, and no proof."""

    def __init__(self, renderer: Renderer | None) -> None:
        self._renderer = renderer
        # fingerprint of messages + answer -> turns, oldest first
        self._answered: dict[bytes, list[_Node]] = {}
        self._nodes: dict[int, _Node] = {}  # by ordinal
        self._latest: _Latest | None = None
        self._asked: set[bytes] = set()  # fingerprints of the messages of each turn
        self._seen: set[bytes] = set()  # fingerprints of all messages
        self._longest = 0  # messages of the longest turn, its answer included

    def place(self, messages: list[Message], tools: list[ToolSchema]) -> Placement:
        """The prompt of a call with these canonical messages. Raises TemplateRefusedError."""
        prints = [fingerprint(message) for message in messages]
        chains = [b""]
        for message_print in prints:
            chains.append(extend_chain(chains[-1], message_print))
        tools_key = _tools_key(tools)
        parent, length, tools_changed = self._longest_turn(chains, tools_key)
        if parent is None:
            reason = "tools_changed" if tools_changed else self._why_no_parent(prints, chains[-1])
            return self._from_scratch(messages, tools, reason, prints, chains[-1])
        tail = messages[length:]
        continued = [*parent.messages, *tail]
        extended = self._extend(parent, continued, tools)
        if extended is None:
            return self._from_scratch(messages, tools, "template_not_append_only", prints, chains[-1])
        left_behind: BranchReason | None = None
        if any(message["role"] == "assistant" for message in tail):
            left_behind = "tools_changed" if tools_changed else "edited_history"
        text, ids = extended
        return Placement(continued, ids, parent.ordinal, left_behind, prints, chains[-1], rendered=text)

    def add(self, turn: Turn, placement: Placement, new_ids: array[int] | None = None) -> None:
        """Take a recorded turn into the tree; later calls may continue it.

        `new_ids` are its tokens behind its parent's, from who has them already; nobody changes them.
        """
        node = self._node(turn, placement.rendered, new_ids)
        for response_print in fingerprints_of_response(turn.response):
            self._answered.setdefault(extend_chain(placement.chain, response_print), []).append(node)
            self._seen.add(response_print)
        self._seen.update(placement.prints)
        self._asked.add(placement.chain)
        self._longest = max(self._longest, len(turn.messages) + 1)

    def placed(self, turn: Turn, chain: bytes, *, with_text: bool) -> Placement:
        """What `add` must know of a turn of an earlier life, whose messages had the fingerprint `chain`.

        The text, which is kept of the latest turn of a sample only, is rendered again.
        """
        text = ""
        if with_text and self._renderer is not None:
            text = self._renderer.render(turn.messages, turn.tools, reply=True)
        prints = [fingerprint(message) for message in turn.messages]
        return Placement(turn.messages, turn.prompt_ids, turn.parent, None, prints, chain, rendered=text)

    def token_logprobs(self, turn: Turn) -> list[tuple[str, float]] | None:
        """(text, log-probability) of each token that the agent is shown of the answer; None: a provider's."""
        if self._renderer is None:
            return None
        shown = self.shown_ids(turn)
        texts = [self._renderer.decode([token_id]) for token_id in shown]
        return list(zip(texts, turn.logprobs[: len(shown)], strict=True))

    def shown_ids(self, turn: Turn) -> list[int]:
        """The answer's tokens without the one that ended it, which the agent is not shown."""
        ids = turn.completion_ids
        if self._renderer is None or not ids or turn.finish_reason == "length":
            return ids
        if "tokens_after_stop" in turn.sampling:  # a text ended it
            return ids
        is_end = self._renderer.special_id(self._renderer.decode(ids[-1:])) == ids[-1]
        return ids[:-1] if is_end else ids

    def _node(self, turn: Turn, rendered: str, new_ids: array[int] | None) -> _Node:
        ids = turn.prompt_ids + turn.completion_ids
        parent = None if turn.parent is None else self._nodes[turn.parent]
        if new_ids is None:
            new_ids = array("I", ids[0 if parent is None else parent.num_ids :])
        last_id = turn.completion_ids[-1] if turn.completion_ids else None
        node = _Node(
            turn.ordinal,
            [*turn.messages, turn.response],
            _tools_key(turn.tools),
            parent,
            new_ids,
            len(ids),
            len(turn.completion_ids),
            last_id,
        )
        self._nodes[turn.ordinal] = node
        self._latest = _Latest(node, ids, rendered)
        return node

    def _longest_turn(self, chains: list[bytes], tools_key: bytes) -> tuple[_Node | None, int, bool]:
        """The longest turn that the call begins with, how long, and whether tools ruled out a longer one."""
        tools_changed = False
        for length in range(len(chains) - 1, 0, -1):
            turns = self._answered.get(chains[length], ())
            for turn in reversed(turns):
                if turn.tools_key == tools_key:
                    return turn, length, tools_changed
            tools_changed = tools_changed or bool(turns)
        return None, 0, tools_changed

    def _why_no_parent(self, prints: list[bytes], chain: bytes) -> BranchReason | None:
        if not self._asked:
            return None
        if chain in self._asked:
            return "resampled"
        if not any(message_print in self._seen for message_print in prints):
            return "new_conversation"
        return "compaction" if len(prints) < self._longest else "edited_history"

    def _from_scratch(
        self,
        messages: list[Message],
        tools: list[ToolSchema],
        reason: BranchReason | None,
        prints: list[bytes],
        chain: bytes,
    ) -> Placement:
        text, ids = ("", []) if self._renderer is None else self._renderer.prompt(messages, tools)
        return Placement(messages, ids, None, reason, prints, chain, rendered=text)

    def _extend(
        self, parent: _Node, continued: list[Message], tools: list[ToolSchema]
    ) -> tuple[str, list[int]] | None:
        """The whole text; the parent's tokens and those of all behind its answer. None without a proof."""
        if self._renderer is None:
            return "", []
        whole = self._renderer.render(continued, tools, reply=True)
        found = self._as_sampled(parent, whole) or self._as_rendered(parent, continued, tools, whole)
        if found is None:
            return None
        end_id, behind_end = found
        ids = self._ids(parent)
        if parent.last_id != end_id:  # it was cut short
            ids.append(end_id)
        ids += self._renderer.encode_after(end_id, behind_end)
        return whole, ids

    def _as_sampled(self, parent: _Node, whole: str) -> tuple[int, str] | None:
        """The usual case: what the parent's prompt said, what was sampled, letter for letter, then new."""
        if self._latest is None or self._latest.node is not parent or self._renderer is None:
            return None
        latest = self._latest
        if latest.closed is None:
            sampled = self._renderer.decode(parent.new_ids[len(parent.new_ids) - parent.num_sampled :])
            latest.closed = latest.rendered + sampled
            end = self._renderer.end_of(sampled)
            latest.ends = end is not None and end == (parent.last_id, "")
        if not latest.ends or parent.last_id is None or not whole.startswith(latest.closed):
            return None
        return parent.last_id, whole[len(latest.closed) :]

    def _as_rendered(
        self, parent: _Node, continued: list[Message], tools: list[ToolSchema], whole: str
    ) -> tuple[int, str] | None:
        """The template's own spelling of the parent and its answer, then new text."""
        assert self._renderer is not None
        try:
            closed = self._renderer.render(continued[: len(parent.messages)], tools, reply=False)
        except TemplateRefusedError:
            return None
        end = self._renderer.end_of(closed)
        if end is None or not whole.startswith(closed):
            return None
        end_id, behind_end = end
        return end_id, behind_end + whole[len(closed) :]

    def _ids(self, node: _Node) -> list[int]:
        """All tokens of a turn, in a list of their own."""
        if self._latest is not None and self._latest.node is node:
            return self._latest.ids.copy()
        return node.ids()


def _tools_key(tools: list[ToolSchema]) -> bytes:
    return orjson.dumps(tools, option=orjson.OPT_SORT_KEYS) if tools else b""
