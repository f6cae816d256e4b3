"""Folders that appear at once or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What makes a folder of weights a policy: files that no engine changes.
COPIED_PREFIXES = (
    "added_tokens",
    "chat_template",
    "generation_config",
    "merges",
    "special_tokens_map",
    "spiece",
    "tokenizer",
    "vocab",
)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a draft beside `path` to write into; it is on disk and at `path` when the block ends without
    error.

    An older folder at `path` is replaced. A process killed inside leaves a hidden draft, which the next one
    removes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        for file in draft.rglob("*"):
            _sync(file)
        _sync(draft)
        _move(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def copy_policy_files(source: Path, folder: Path) -> None:
    """Copy tokenizer, chat template and generation config, byte for byte."""
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name.startswith(COPIED_PREFIXES):
            shutil.copyfile(file, folder / file.name)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(draft: Path, path: Path) -> None:
    """An older folder leaves first: a full one cannot be renamed over."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        os.rename(path, old)
    os.rename(draft, path)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Loading and saving by transformers draws on the terminal, which belongs to whoever runs the engine."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()
