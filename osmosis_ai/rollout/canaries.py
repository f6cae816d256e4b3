"""Canaries: answers whose order is known, given to a grader before a model's are.

The right answer of a row is its label. It must get a higher reward than an empty answer, and than the right
answer of another row: a grader that says otherwise would teach, or report, something else than it should.

    row 0, label "4":  "4" -> 1.0   "" -> 0.0   "6" -> 0.0     as it must be
    row 1, label "6":  "6" -> 1.0   "" -> 1.0   "4" -> 0.0     an empty answer is worth as much: a finding
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from osmosis_ai.rollout.agent_loop_grader import AgentLoopGrader
from osmosis_ai.rollout.config.workflow import GraderConfig
from osmosis_ai.rollout.grader import Grader, GraderContext, Judge
from osmosis_ai.rollout.samples import RolloutSample
from osmosis_ai.rollout.validator import ValidationError, ValidationResult
from osmosis_ai.types import Row

NUM_ROWS = 8  # that are tried; three gradings each
SECONDS = 60.0  # for all of them
ANSWER = "{label}"  # the form of a right answer
SAMPLE = "main"

Shape = Literal["text", "blocks"]  # how a framework keeps content: "4", or [{"type": "text", "text": "4"}]


@dataclass(frozen=True, slots=True)
class Canary:
    """One row's three answers and what each was worth; a text where the grader raised instead."""

    row: Row
    other: str  # the label of another row
    right: float | str
    empty: float | str
    wrong: float | str

    @property
    def holds(self) -> bool:
        return self._below(self.empty) and self._below(self.wrong)

    def _below(self, reward: float | str) -> bool:
        """No reward is less than any."""
        return isinstance(self.right, float) and (isinstance(reward, str) or reward < self.right)


@dataclass(slots=True)
class Looked:
    """What a grader looked at that a canary does not have."""

    at: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return " and ".join(sorted(self.at))


def check_grader(
    result: ValidationResult,
    grader: type[Grader[Any]],
    config: GraderConfig | None,
    rows: Sequence[Row],
    answer: str = ANSWER,
) -> None:
    """Add to `result` what the canaries found. `answer` is the form of a right one: "The answer is {label}."

    The grader runs in a thread of its own: one that never comes back is left behind.
    """
    pairs = _pairs(rows)
    if not pairs:
        return _skip(result, "fewer than two of the rows have labels, and different ones")
    if grader is AgentLoopGrader:
        return _skip(result, "the reward is what run() gives to ctx.complete, so there is nothing to try")
    looked, found = Looked(), list[list[Canary]]()
    thread = threading.Thread(
        target=lambda: found.append(asyncio.run(_tried(grader, config, pairs, answer, looked))), daemon=True
    )
    thread.start()
    thread.join(SECONDS)
    if not found:
        message = f"the grader had not graded {3 * len(pairs)} short answers after {SECONDS:.0f} s"
        result.errors.append(ValidationError("CANARY_TIMEOUT", message, "grader.grade"))
    elif all(isinstance(canary.right, str) for canary in found[0]):
        _skip(result, f"{_needs(looked)}; on the label of row {found[0][0].row.index}: {found[0][0].right}")
    elif looked.at and all(c.right == c.empty == c.wrong for c in found[0]):
        _skip(result, f"{_needs(looked)}, and gives the same to every answer in words")
    else:
        result.errors += _findings(found[0], answer)
        result.warnings += _raised(found[0])
        held = sum(map(_holds, found[0]))
        result.found["Canaries"] = f"{len(pairs)} rows, the right answer first in {held}"


def _holds(canary: Canary) -> bool:
    return canary.holds


def _skip(result: ValidationResult, why: str) -> None:
    message = f"the grader was not tried: {why}"
    result.warnings.append(ValidationError("CANARY_SKIPPED", message, "grader.grade"))


def _needs(looked: Looked) -> str:
    return f"it needs {looked}" if looked.at else "it cannot grade an answer in words alone"


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """The first rows with a label, each with the label of another row that differs from its own."""
    labelled = [(row, row.label) for row in rows if row.label]
    pairs = []
    for position, (row, label) in enumerate(labelled[:NUM_ROWS]):
        others = labelled[position + 1 :] + labelled[:position]
        other = next((text for _, text in others if text.strip() != label.strip()), None)
        if other is not None:
            pairs.append((row, other))
    return pairs


# --- grading


async def _tried(
    grader: type[Grader[Any]],
    config: GraderConfig | None,
    pairs: Sequence[tuple[Row, str]],
    form: str,
    looked: Looked,
) -> list[Canary]:
    """The canaries in the shape of content that the grader reads best: which that is, nobody says."""
    tried = []
    shapes: tuple[Shape, ...] = ("text", "blocks")
    for shape in shapes:
        canaries = []
        for row, other in pairs:
            texts = (_right(form, row.label or ""), "", _right(form, other))
            rewards = [await _reward(grader, config, row, text, shape, looked) for text in texts]
            canaries.append(Canary(row, other, *rewards))
        tried.append(canaries)
    return max(tried, key=lambda canaries: (sum(map(_holds, canaries)), -_num_raised(canaries)))


def _right(form: str, label: str) -> str:
    return form.replace("{label}", label)


def _num_raised(canaries: Sequence[Canary]) -> int:
    return sum(isinstance(canary.right, str) for canary in canaries)


async def _reward(
    grader: type[Grader[Any]],
    config: GraderConfig | None,
    row: Row,
    text: str,
    shape: Shape,
    looked: Looked,
) -> float | str:
    """What the grader gives to a conversation of the prompt and one answer; or what it raised."""
    sample = RolloutSample(id=SAMPLE, label=row.label)
    sample.messages = [
        _Message(looked, {**message, "content": _content(message.get("content"), shape)})
        for message in [*row.prompt, {"role": "assistant", "content": text}]
    ]
    metadata = copy.deepcopy(row.metadata)
    ctx = _Context(looked, row.label, {SAMPLE: sample}, metadata, rollout_id="canary")
    try:
        await grader(copy.deepcopy(config)).grade(ctx)
    except (Exception, SystemExit) as error:  # the boundary to the author's grade: that it raises is a result
        return f"{type(error).__name__}: {error}"
    return "no reward" if sample.reward is None else float(sample.reward)


def _content(content: Any, shape: Shape) -> Any:
    return [{"type": "text", "text": content}] if shape == "blocks" and isinstance(content, str) else content


class _Message(dict[str, Any]):
    """A message that remembers whether the grader asked it for tool calls."""

    def __init__(self, looked: Looked, message: dict[str, Any]) -> None:
        super().__init__(message)
        self._looked = looked

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._note(key)
        return super().__contains__(key)

    def _note(self, key: object) -> None:
        if key in ("tool_calls", "tool_call_id"):
            self._looked.at.add("tool calls")


class _Context(GraderContext):
    """A context that remembers what the grader asked it for in vain."""

    def __init__(self, looked: Looked, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._looked = looked

    @property
    def judge(self) -> Judge:
        self._looked.at.add("a judge")
        return super().judge

    @property
    def artifacts_dir(self) -> None:
        self._looked.at.add("files of the rollout")


# --- what they found


def _findings(canaries: Sequence[Canary], answer: str) -> Iterator[ValidationError]:
    where = "grader.grade"
    way_out = f"If a right answer looks other than {answer!r}, say how: --answer 'The answer is {{label}}.'"
    unmoved = [c for c in canaries if c.right == c.empty == c.wrong]
    if len(unmoved) == len(canaries):
        message = (
            f"right, empty and wrong answers all get {_reward_text(unmoved[0].right)} in {len(unmoved)} rows."
            f" First {_shown(unmoved[0])}. {way_out}"
        )
        yield ValidationError("CANARY_ALL_ALIKE", message, where)
        return
    for code, what, rewards in (
        ("CANARY_EMPTY_ANSWER", "an empty answer", [c.empty for c in canaries]),
        ("CANARY_OTHER_ANSWER", "the answer to another row", [c.wrong for c in canaries]),
    ):
        bad = [
            (canary, reward)
            for canary, reward in zip(canaries, rewards, strict=True)
            if isinstance(reward, float) and not (isinstance(canary.right, float) and reward < canary.right)
        ]
        if bad:
            canary, reward = bad[0]
            message = (
                f"{what} gets as much as the right one in {len(bad)} of {len(canaries)} rows. First "
                f"{_shown(canary)}, {what} {reward:g}. {way_out}"
            )
            yield ValidationError(code, message, where)


def _raised(canaries: Sequence[Canary]) -> Iterator[ValidationError]:
    """A grader that raises fails the rollout: an answer that is merely bad would have no reward at all."""
    for what, answers in (
        ("a right answer", [canary.right for canary in canaries]),
        ("an empty answer", [canary.empty for canary in canaries]),
        ("a wrong answer", [canary.wrong for canary in canaries]),
    ):
        texts = [answer for answer in answers if isinstance(answer, str)]
        if texts:
            message = (
                f"on {what} the grader raised in {len(texts)} of {len(canaries)} rows, so such a rollout is "
                f"a grader_error and in no mean; give a low reward instead. First {texts[0]}"
            )
            yield ValidationError("CANARY_RAISED", message, "grader.grade")


def _shown(canary: Canary) -> str:
    return f"row {canary.row.index}: the label {canary.row.label!r} gets {_reward_text(canary.right)}"


def _reward_text(reward: float | str) -> str:
    return f"{reward:g}" if isinstance(reward, float) else "no reward"
