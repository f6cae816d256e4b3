"""The debug log: one file per rollout, one JSON object per line, written by a thread of its own.

    DIR/1703270400/rollout-abc123.jsonl
    {"event": "pre_llm", "rollout_id": "rollout-abc123", "time": 1703270401.25, "seq": 0, "turn": 0}

`time` is seconds since the epoch, `seq` counts the events of the rollout from 0.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import queue
import re
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

OWN_KEYS = frozenset({"event", "rollout_id", "time", "seq"})
MAX_NAME = 200  # characters; file systems end at 255 bytes
CLOSE_SECONDS = 5.0


class DebugLog:
    """Writes the events of all rollouts below `folder`/<unix seconds of now>/."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / str(int(time.time()))
        self._lines: queue.SimpleQueue[tuple[Path, str] | None] = queue.SimpleQueue()
        self._next: dict[str, int] = {}
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._warned = False

    def write(self, rollout_id: str, event: str, data: dict[str, Any]) -> None:
        """Take an event as it is now; it reaches the disk later. Values that are no JSON become text.

        A key of `data` that is one of ours gets an underscore: time -> time_.
        """
        with self._lock:
            seq = self._next.get(rollout_id, 0)
            self._next[rollout_id] = seq + 1
            if self._writer is None:
                self._writer = threading.Thread(target=self._work, name="osmosis-debug-log", daemon=True)
                self._writer.start()
                atexit.register(self.close)
        theirs = {f"{key}_" if key in OWN_KEYS else key: value for key, value in data.items()}
        line = {"event": event, "rollout_id": rollout_id, "time": time.time(), "seq": seq, **theirs}
        self._lines.put((self.folder / file_name(rollout_id), _encode(line)))

    def forget(self, rollout_id: str) -> None:
        """The rollout has ended: its count is not needed any more."""
        with self._lock:
            self._next.pop(rollout_id, None)

    def close(self) -> None:
        """Write what is left."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            self._lines.put(None)
            writer.join(CLOSE_SECONDS)
            atexit.unregister(self.close)

    def _work(self) -> None:
        going = True
        while going:
            batch: dict[Path, list[str]] = defaultdict(list)
            entry = self._lines.get()
            while entry is not None:
                batch[entry[0]].append(entry[1])
                try:
                    entry = self._lines.get_nowait()
                except queue.Empty:
                    break
            going = entry is not None
            for path, lines in batch.items():
                self._append(path, lines)

    def _append(self, path: Path, lines: list[str]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:  # a log that cannot be written must not end a rollout
            if not self._warned:
                logger.warning("the debug log %s cannot be written: %s", path, error)
            self._warned = True


def file_name(rollout_id: str) -> str:
    """A name inside the folder, whatever the id: "r-1" -> "r-1.jsonl", "../x" -> "_x-3f6a....jsonl"."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", rollout_id).lstrip(".")[:MAX_NAME]
    if safe != rollout_id or not safe:
        safe = f"{safe}-{hashlib.sha256(rollout_id.encode(errors='replace')).hexdigest()[:12]}"
    return f"{safe}.jsonl"


def _encode(line: dict[str, Any]) -> str:
    try:
        return json.dumps(line, default=str, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:  # a key that is no text, a circle: the event is kept as text
        own = {key: line[key] for key in ("event", "rollout_id", "time", "seq")}
        return json.dumps({**own, "data": repr(line), "problem": str(error)}) + "\n"
