"""Opening the database: a current SQLite, a write-ahead log, and the schema brought to today's version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from osmosis_ai.errors import StoreError
from osmosis_ai.store.writer import BUSY_TIMEOUT_MS, store_error

OLDEST_SQLITE = (3, 51, 3)  # before it, a checkpoint could corrupt a database in WAL mode
APPLICATION_ID = 0x4F534D4F  # "OSMO", in the header of our files
# Script N takes a database from version N - 1 to N.
MIGRATIONS = tuple(f"schema_00{number}.sql" for number in range(1, 6))


def open_writable(path: Path) -> apsw.Connection:
    """The writer's connection, with the schema brought to today's version."""
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < OLDEST_SQLITE:
        raise StoreError(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a database in WAL mode; at least "
            f"{'.'.join(map(str, OLDEST_SQLITE))} is needed. Install apsw from its wheel, which bundles one."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = apsw.Connection(str(path))
        try:
            _configure(db, path)
            migrate(db, path, _scripts())
        except BaseException:
            db.close()
            raise
    except OSError as error:
        raise StoreError(
            f"{path.parent} cannot be made: {error}. Choose a folder that may be written."
        ) from error
    except apsw.Error as error:
        raise store_error(path, error) from error
    return db


def _configure(db: apsw.Connection, path: Path) -> None:
    db.set_busy_timeout(BUSY_TIMEOUT_MS)
    mode = db.pragma("journal_mode", "wal")
    if mode != "wal":
        raise StoreError(f"{path} cannot use a write-ahead log (journal mode {mode}); choose a local disk")
    db.pragma("synchronous", "full")
    db.pragma("foreign_keys", True)
    # Plans do not depend on bound values; otherwise statements are compiled again for each turn.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def _scripts() -> list[str]:
    return [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in MIGRATIONS]


def migrate(db: apsw.Connection, path: Path, scripts: Sequence[str]) -> None:
    """Bring a database to version `len(scripts)`, in one transaction: all scripts it lacks, or none."""
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db, path, len(scripts))
        for script in scripts[version:]:
            db.execute(script)
        if version < len(scripts):
            db.pragma("user_version", len(scripts))
            db.pragma("application_id", APPLICATION_ID)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _version(db: apsw.Connection, path: Path, newest: int) -> int:
    """The schema version in the file; 0 for an empty one. Refuses files that are not ours or are newer."""
    if db.pragma("application_id") != APPLICATION_ID:
        if db.execute("SELECT count(*) FROM sqlite_schema").get:
            raise StoreError(f"{path} is a SQLite database of another program; name another file")
        return 0
    version = int(db.pragma("user_version"))
    if version > newest:
        raise StoreError(
            f"{path} was written by a newer Osmosis (schema version {version}, known here up to {newest}). "
            "Upgrade osmosis-ai, or name another file."
        )
    return version


def open_readonly(path: Path) -> apsw.Connection:
    """A connection for reading only, beside the writer's."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(BUSY_TIMEOUT_MS)
    return db
