"""Write data/train.jsonl and data/heldout.jsonl: calculator questions in words.

    python examples/calculator/make_data.py

The same seed writes the same bytes. No problem of the held-out file, in any phrasing, is in the training
file.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NamedTuple

SYSTEM_PROMPT = "You are a calculator. Use the tools, then answer with the number."
SEED = 11
NUM_TRAIN = 800
NUM_HELDOUT = 200
TWO_DIGITS = (10, 99)
ONE_DIGIT = (2, 9)

FIRST_STEP = {
    "multiply": ("What is {a} times {b}", "Multiply {a} by {b}", "How much is {a} times {b}"),
    "add": ("What is {a} plus {b}", "Add {a} and {b}", "How much is {a} plus {b}"),
}
SECOND_STEP = {"multiply": ", and then times {c}", "add": ", and then add {c}"}
END = {"What": "?", "How": "?", "Multiply": ".", "Add": "."}


class Problem(NamedTuple):
    """`first` applied to a and b; then, in a two-step problem, `second` applied to the result and c."""

    first: str
    a: int
    b: int
    second: str | None
    c: int | None

    def answer(self) -> int:
        result = apply(self.first, self.a, self.b)
        if self.second is None or self.c is None:
            return result
        return apply(self.second, result, self.c)


def apply(operation: str, a: int, b: int) -> int:
    return a * b if operation == "multiply" else a + b


def draw(rng: random.Random) -> Problem:
    """A random problem: half of them in one step, results of two or three digits."""
    first = rng.choice(("multiply", "add"))
    a, b = rng.randint(*TWO_DIGITS), rng.randint(*ONE_DIGIT)
    if rng.random() < 0.5:
        return Problem(first, a, b, None, None)
    second = "add" if first == "multiply" else "multiply"
    c = rng.randint(*(TWO_DIGITS if second == "add" else ONE_DIGIT))
    return Problem(first, a, b, second, c)


def question(problem: Problem, rng: random.Random) -> str:
    text = rng.choice(FIRST_STEP[problem.first]).format(a=problem.a, b=problem.b)
    if problem.second is not None:
        text += SECOND_STEP[problem.second].format(c=problem.c)
    return text + END[text.split()[0]]


def rows(seed: int = SEED) -> list[dict[str, object]]:
    """NUM_TRAIN + NUM_HELDOUT rows, each of another problem."""
    rng = random.Random(seed)
    problems: dict[Problem, None] = {}
    while len(problems) < NUM_TRAIN + NUM_HELDOUT:
        problems.setdefault(draw(rng))
    return [
        {
            "system_prompt": SYSTEM_PROMPT,
            "user_prompt": question(problem, rng),
            "ground_truth": str(problem.answer()),
            "metadata": {
                "steps": 1 if problem.second is None else 2,
                "kind": problem.first if problem.second is None else f"{problem.first}_{problem.second}",
            },
        }
        for problem in problems
    ]


def main() -> None:
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    every = rows()
    for name, chosen in (("train", every[:NUM_TRAIN]), ("heldout", every[NUM_TRAIN:])):
        text = "".join(json.dumps(row) + "\n" for row in chosen)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
