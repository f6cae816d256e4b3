"""Raw prompts in the tree of a sample: text that goes on keeps the tokens that it goes on from.

There is no template here; the prompt is the text. It continues a turn when it begins with that turn's prompt
and the whole text of what was sampled:

    turn 0   prompt "Q: 2+3?\\nA:"            ids [10, 11, 12]
             sampled " 5<end>"                ids [20, 2]         the text without the end token: " 5"
    call     prompt "Q: 2+3?\\nA: 5\\nQ: 1+1?\\nA:"
    turn 1   parent 0
             ids     [10, 11, 12] + [20, 2] + [13, 14, 11, 12]    of "\\nQ: 1+1?\\nA:", behind what was there

An end token that was sampled stays, though the agent's text does not show it: the policy chose to end there,
and what it is shown next comes after that choice, in sampling and in training alike. A text that was cut at a
`stop` is continued by the prompt that repeats the text *with* the stop, as agents of this style do.
"""

from __future__ import annotations

from array import array
from bisect import insort
from dataclasses import dataclass
from hashlib import blake2b

from osmosis_ai.gateway.tree import BranchReason, ConversationTree, Placement, Renderer
from osmosis_ai.types import Turn

CONTEXT_TOKENS = 8  # before new text, enough for a decoder to show how the two meet


@dataclass(frozen=True, slots=True)
class TextPlacement(Placement):
    """A raw prompt's place; `text` is the prompt."""

    text: str


class SampleTree(ConversationTree):
    """All turns of one sample, those with raw prompts included."""

    def __init__(self, renderer: Renderer | None) -> None:
        super().__init__(renderer)
        self._text_renderer = renderer
        self._texts: list[tuple[str, Turn]] = []  # prompt + sampled text, by length
        self._prompts: set[str] = set()

    def place_text(self, prompt: str) -> TextPlacement:
        """The tokens of a raw prompt."""
        for text, turn in reversed(self._texts):
            if prompt.startswith(text):
                ids = self._continued(turn, prompt[len(text) :])
                if ids is not None:
                    return self._placed(prompt, ids, turn.ordinal, None)
                return self._placed(prompt, self._encoded(prompt), None, "template_not_append_only")
        return self._placed(prompt, self._encoded(prompt), None, self._why_no_text(prompt))

    def placed_text(self, turn: Turn, chain: bytes) -> TextPlacement:
        """`placed`, for a turn with a raw prompt."""
        text = turn.messages[0]["content"]
        return TextPlacement(turn.messages, turn.prompt_ids, turn.parent, None, [], chain, text=text)

    def add(self, turn: Turn, placement: Placement, new_ids: array[int] | None = None) -> None:
        if not isinstance(placement, TextPlacement):
            return super().add(turn, placement, new_ids)
        self._prompts.add(placement.text)
        insort(self._texts, (placement.text + self._sampled_text(turn), turn), key=lambda item: len(item[0]))

    def _placed(
        self, prompt: str, ids: list[int], parent: int | None, reason: BranchReason | None
    ) -> TextPlacement:
        chain = blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        messages = [{"role": "user", "content": prompt}]
        return TextPlacement(messages, ids, parent, reason, prints=[], chain=chain, text=prompt)

    def _encoded(self, prompt: str) -> list[int]:
        return [] if self._text_renderer is None else self._text_renderer.encode(prompt)

    def _continued(self, turn: Turn, new_text: str) -> list[int] | None:
        """The turn's tokens and those of the new text; None without a proof that they say this text."""
        renderer = self._text_renderer
        if renderer is None:
            return []
        known = turn.prompt_ids + turn.completion_ids
        new_ids = renderer.encode(new_text)
        before = known[-CONTEXT_TOKENS:]
        if renderer.decode(before + new_ids) != renderer.decode(before) + new_text:
            return None
        return known + new_ids

    def _sampled_text(self, turn: Turn) -> str:
        renderer = self._text_renderer
        if renderer is None:
            return str(turn.response["content"])
        return renderer.decode(self.shown_ids(turn))

    def _why_no_text(self, prompt: str) -> BranchReason | None:
        if not self._prompts:
            return None
        if prompt in self._prompts:
            return "resampled"
        known = any(prompt.startswith(earlier) for earlier in self._prompts)
        return "edited_history" if known else "new_conversation"
