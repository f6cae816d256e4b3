"""Which rows of a dataset are used."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from osmosis_ai.errors import DatasetError

_PART = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Selection:
    """A window (`limit` rows after the first `offset`), a random `sample` of it, or the rows that are named.

    12 rows, offset 2, limit 8, sample 3: three of the rows 2 to 9, the same ones for the same seed, in the
    order of the file. rows "3,7,10-12": the rows 3, 7, 10 and 11 and 12, counted from 0.
    """

    limit: int | None = None
    offset: int = 0
    rows: str = ""
    sample: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.offset < 0 or (self.limit is not None and self.limit < 1):
            raise DatasetError(
                f"limit must be at least 1 and offset at least 0, got {self.limit} and {self.offset}"
            )
        if self.rows and (self.limit is not None or self.offset or self.sample is not None):
            raise DatasetError("rows names the rows one by one: leave out limit, offset and sample")
        if self.sample is not None and self.sample < 1:
            raise DatasetError(f"sample must be at least 1, got {self.sample}")

    @property
    def stop(self) -> int | None:
        """The position after the last row that can be selected; None: the end of the file."""
        if self.rows:
            return max(last for _, last in row_ranges(self.rows)) + 1
        return None if self.limit is None else self.offset + self.limit

    def indices(self, num_rows: int) -> range | list[int]:
        """The selected positions, rising, of a dataset of which the first `num_rows` up to `stop` exist."""
        if self.rows:
            ranges = row_ranges(self.rows)
            return sorted({i for first, last in ranges for i in range(first, min(last + 1, num_rows))})
        window = range(self.offset, num_rows)
        if self.sample is None or self.sample >= len(window):
            return window
        return sorted(random.Random(self.seed).sample(window, self.sample))


def row_ranges(text: str) -> list[tuple[int, int]]:
    """ "3,7,10-20" -> [(3, 3), (7, 7), (10, 20)]. Raises DatasetError."""
    ranges = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise DatasetError(f"rows {text!r}: {part.strip()!r} is not a row or a range; write 3,7,10-20")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise DatasetError(f"rows {text!r}: the range {part.strip()!r} runs backwards")
        ranges.append((first, last))
    return ranges
