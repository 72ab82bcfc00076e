"""The journal's sqlite file: blocking calls, for one thread at a time.

A transaction holds the new transitions, what they make of the present status, and the sinks'
cursors, so that no crash can tear them apart. WAL with synchronous=FULL: one fsync a transaction,
and readers (`netreeve log`) that never hold up the writer. sqlite cuts a torn tail of the WAL off
by itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from netreeve.errors import JournalError
from netreeve.model.ids import EndpointId
from netreeve.status import transition
from netreeve.status.transition import Transition

__all__ = ["JournalFile", "JournalReader", "is_refusal"]

log = logging.getLogger(__name__)

FILE_NAME = "journal.sqlite"
_VERSION = 1
_WAL_KEEP_BYTES = 4 << 20
_BUSY_S = 5.0

_SCHEMA = """
CREATE TABLE transitions (
    seq INTEGER PRIMARY KEY, endpoint TEXT NOT NULL, unix_s INTEGER NOT NULL, record BLOB NOT NULL);
CREATE INDEX transitions_by_endpoint ON transitions (endpoint, seq);
CREATE TABLE present (endpoint TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE cursors (sink TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class _DamagedError(Exception):
    """The file is no journal, or not a whole one."""


def is_refusal(error: Exception) -> bool:
    """Whether the disk or the directory is to blame, and not this program."""
    bug = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError)
    return isinstance(error, sqlite3.Error | OSError) and not isinstance(error, bug)


class JournalFile:
    """`path` None keeps everything in memory.

    sqlite3.Error and OSError come through from every method (`is_refusal`); a transaction that
    failed has left nothing behind. `damage` says why the file found was moved aside, else None.
    """

    def __init__(self, path: Path | None, sinks: Collection[str]) -> None:
        """Open or make the file, and forget the cursors of all but these sinks.

        Raises JournalError where a later version of netreeve wrote it.
        """
        self.path = path
        self.damage: str | None = None
        self._inode = (0, 0)
        try:
            self._connect()
        except (_DamagedError, sqlite3.DatabaseError, ValueError) as error:
            if path is None or not _is_damage(error):
                raise
            self.damage = str(error)
            aside = path.with_name(FILE_NAME + ".damaged")
            log.error(
                "the journal is damaged and was moved aside; a new one begins with seq 1",
                extra={"fields": {"path": str(path), "aside": str(aside), "error": self.damage}},
            )
            # sqlite finds the WAL by name: under these names the old file can still be examined.
            for end in ("-wal", "-shm", ""):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{path}{end}", f"{aside}{end}")
            self._connect()
        try:
            with self._transaction() as connection:
                known = {sink for (sink,) in connection.execute("SELECT sink FROM cursors")}
                connection.executemany(
                    "DELETE FROM cursors WHERE sink = ?", [(sink,) for sink in known - {*sinks}]
                )
                connection.executemany(
                    "INSERT INTO cursors VALUES (?, 0)", [(sink,) for sink in {*sinks} - known]
                )
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        # The thread that opens is not the one that works afterwards; there is only ever one.
        connection = sqlite3.connect(
            ":memory:" if self.path is None else self.path,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        self._connection = connection
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEEP_BYTES}")
            if version > _VERSION:
                raise JournalError(
                    f"{self.path}: a later version of netreeve wrote this journal; "
                    "use that version, or move the file away"
                )
            if version == 0:
                connection.executescript(
                    f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version = {_VERSION};COMMIT;"
                )
            (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                raise _DamagedError(answer)
            self.present()
            if self.path is not None:
                status = os.stat(self.path)
                self._inode = (status.st_dev, status.st_ino)
        except BaseException:
            connection.close()
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise

    def present(self) -> dict[EndpointId, Transition]:
        """The last transition of each endpoint that is not removed; ValueError if damaged."""
        return {
            EndpointId.parse(endpoint): transition.decode(record)
            for endpoint, record in self._connection.execute("SELECT * FROM present")
        }

    def last_seq(self) -> int:
        """The number of the newest transition, 0 in an empty journal."""
        (seq,) = self._connection.execute("SELECT max(seq) FROM transitions").fetchone()
        return seq or 0

    def has_gap_record(self, from_seq: int) -> bool:
        """Whether a gap is recorded at `from_seq` or later."""
        found = self._connection.execute(
            "SELECT 1 FROM transitions WHERE endpoint = '' AND seq >= ? LIMIT 1", (from_seq,)
        )
        return found.fetchone() is not None

    def cursors(self) -> dict[str, int]:
        """Of each sink, the number of the last transition that it is known to have."""
        return dict(self._connection.execute("SELECT sink, seq FROM cursors"))

    def meta(self, key: str) -> str | None:
        """A value that `write` was given, None if it never was."""
        found = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def write(
        self,
        transitions: Sequence[Transition],
        cursors: Mapping[str, int],
        meta: Mapping[str, str],
        unix_s: int,
    ) -> None:
        """All of it in one transaction; on return it is on the disk.

        OSError where the file is no longer the one that bears its name: what is written to it
        would be lost.
        """
        self._check_name()
        rows: list[tuple[int, str, int, bytes]] = []
        present: dict[str, bytes | None] = {}
        after_gap = False
        for each in transitions:
            record = transition.encode(each)
            rows.append((each.seq, each.endpoint, unix_s, record))
            if each.status == "gap":
                present.clear()
                after_gap = True
            else:
                present[each.endpoint] = None if each.status == "removed" else record
        with self._transaction() as connection:
            connection.executemany("INSERT INTO transitions VALUES (?, ?, ?, ?)", rows)
            if after_gap:
                connection.execute("DELETE FROM present")
            connection.executemany(
                "INSERT OR REPLACE INTO present VALUES (?, ?)",
                [(endpoint, record) for endpoint, record in present.items() if record is not None],
            )
            connection.executemany(
                "DELETE FROM present WHERE endpoint = ?",
                [(endpoint,) for endpoint, record in present.items() if record is None],
            )
            connection.executemany(
                "UPDATE cursors SET seq = ?2 WHERE sink = ?1", list(cursors.items())
            )
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(meta.items()))

    def read(self, after_seq: int, limit: int) -> list[Transition]:
        """The first `limit` transitions with a higher number, in order."""
        rows = self._connection.execute(
            "SELECT record FROM transitions WHERE seq > ? ORDER BY seq LIMIT ?", (after_seq, limit)
        )
        return [transition.decode(record) for (record,) in rows]

    def unix_s_after(self, seq: int) -> int | None:
        """When the first transition with a higher number was written; None if there is none."""
        found = self._connection.execute(
            "SELECT unix_s FROM transitions WHERE seq > ? ORDER BY seq LIMIT 1", (seq,)
        ).fetchone()
        return None if found is None else found[0]

    def drop(self, passed_seq: int, before_unix_s: float, limit: int) -> int:
        """Drop the oldest transitions, `limit` at most; returns how many went.

        Those that go have at most `passed_seq` and were written before `before_unix_s`. The newest
        one stays: the next number is counted from it.
        """
        rows = self._connection.execute(
            "SELECT seq, unix_s FROM transitions ORDER BY seq LIMIT ?", (limit,)
        ).fetchall()
        bound = min(passed_seq, self.last_seq() - 1)
        last, count = 0, 0
        for seq, unix_s in rows:
            if seq > bound or unix_s >= before_unix_s:
                break
            last, count = seq, count + 1
        if count:
            with self._transaction() as connection:
                connection.execute("DELETE FROM transitions WHERE seq <= ?", (last,))
        return count

    def used_bytes(self) -> int:
        """What the pages in use hold; the WAL beside them adds a few MiB at most."""
        pages, free, page_bytes = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * page_bytes)

    def close(self) -> None:
        """Close; what was written stays. Never raises for the disk's sake."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _check_name(self) -> None:
        if self.path is None:
            return
        status = os.stat(self.path)
        if (status.st_dev, status.st_ino) != self._inode:
            raise OSError(f"{self.path} was replaced by another file")


class JournalReader:
    """The journal read from outside, with or without a running agent.

    Records come as the JSON that was written. sqlite3.Error comes through.
    """

    def __init__(self, state_dir: Path) -> None:
        """FileNotFoundError where there is no journal, sqlite3.Error where it can't be read."""
        self._path = state_dir / FILE_NAME
        status = os.stat(self._path)
        self._inode = (status.st_dev, status.st_ino)
        self._connection = self._connect("mode=ro")
        try:
            self.last_seq()
        except sqlite3.OperationalError:
            self._connection.close()
            # Without a WAL nobody writes, and a reader who may not make one must say so.
            if os.path.exists(f"{self._path}-wal"):
                raise
            self._connection = self._connect("mode=ro&immutable=1")
            self.last_seq()

    def _connect(self, how: str) -> sqlite3.Connection:
        uri = f"{self._path.absolute().as_uri()}?{how}"
        return sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)

    def last_seq(self) -> int:
        """The number of the newest transition, 0 in an empty journal."""
        (seq,) = self._connection.execute("SELECT max(seq) FROM transitions").fetchone()
        return seq or 0

    def read(self, from_seq: int, limit: int, endpoint: str | None) -> list[tuple[int, bytes]]:
        """The first `limit` records from `from_seq` on, of one endpoint or of all, in order.

        A gap concerns every endpoint, so it is among them.
        """
        if endpoint is None:
            rows = self._connection.execute(
                "SELECT seq, record FROM transitions WHERE seq >= ? ORDER BY seq LIMIT ?",
                (from_seq, limit),
            )
        else:
            rows = self._connection.execute(
                "SELECT seq, record FROM transitions WHERE endpoint IN (?, '') AND seq >= ?"
                " ORDER BY seq LIMIT ?",
                (endpoint, from_seq, limit),
            )
        return rows.fetchall()

    def seq_of_last(self, count: int, endpoint: str | None) -> int:
        """The number from which on there are `count` records (at most), of one endpoint or all."""
        where = "" if endpoint is None else "WHERE endpoint IN (?, '') "
        arguments = (count,) if endpoint is None else (endpoint, count)
        (seq,) = self._connection.execute(
            f"SELECT min(seq) FROM (SELECT seq FROM transitions {where}ORDER BY seq DESC LIMIT ?)",
            arguments,
        ).fetchone()
        return seq or 0

    def is_replaced(self) -> bool:
        """Whether another file, or none, bears the name by now."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return True
        return (status.st_dev, status.st_ino) != self._inode

    def close(self) -> None:
        self._connection.close()


def _is_damage(error: Exception) -> bool:
    if isinstance(error, sqlite3.DatabaseError):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        # SQLITE_ERROR: "no such table", a database of somebody else.
        return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return True
