"""Reads what a client and its server use for their work, part by part."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from benchmarks import processor
from benchmarks.processes import descendants

WAL: Final = "WAL"
_ACTIVITY: Final = """
SELECT pid, query FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
# What a backend is there for, by what it was last sent. A store's job is ended by the thread that runs it.
_WORK: Final = (
    ("run", re.compile(r"app\.current_store_id|salon_jobs_finish\(|^COMMIT")),
    ("finish", re.compile(r"DELETE FROM salon_jobs_job\b")),
    ("claim", re.compile(r"SET state = 'running'|salon_jobs_claim|WITH RECURSIVE\s+(step|me)\b")),
    ("enqueue", re.compile(r"salon_jobs_enqueue\(|salon_jobs_add_jobs\(|INSERT INTO salon_jobs_job\b")),
)
_OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class Reading:
    """What has been used so far: nanoseconds of threads, by process and thread, and of backends; bytes of WAL."""

    threads: Mapping[tuple[int, int], tuple[str, int]]
    backends: Mapping[int, int]
    wal: int


class Meter:
    """Meter of one client and its server. Not thread-safe."""

    def __init__(self, connection: psycopg.Connection[Any], server: int, client: int, *, name: str) -> None:
        """Read what the processes of both use, by a connection whose own use counts for nobody."""
        self._connection, self._server, self._client, self._client_is = connection, server, client, name
        self._work: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def look(self) -> None:
        """Note what each backend is doing, or did last."""
        for pid, query in self._connection.execute(_ACTIVITY):
            for work, pattern in _WORK:
                if pattern.search(query):
                    self._work[pid][work] += 1
                    break

    def read(self) -> Reading:
        """Return what has been used so far."""
        threads: dict[tuple[int, int], tuple[str, int]] = {}
        for pid in (self._client, *descendants(self._client)):
            for thread, (name, used) in processor.threads(pid).items():
                threads[pid, thread] = (self._name(pid, thread, name), used)
        observer = self._connection.info.backend_pid
        backends = {pid: processor.nanoseconds(pid) for pid in descendants(self._server) if pid != observer}
        [(wal,)] = self._connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchall()
        return Reading(threads, backends, wal)

    def spent(self, before: Reading, after: Reading, jobs: int) -> dict[str, float]:
        """Return what was used in between for one job: microseconds by part, and bytes of WAL.

        A name with a colon is that of a part of the sum whose name is before the colon.
        """
        client, server = Counter[str](), Counter[str]()
        for key, (name, used) in after.threads.items():
            client[name] += used - before.threads.get(key, ("", 0))[1]
        for pid, used in after.backends.items():
            [(work, _)] = self._work[pid].most_common(1) or [(_OTHER, 0)]
            server[work] += used - before.backends.get(pid, 0)
        parts: dict[str, int] = {"all": client.total() + server.total()}
        for side, spent in ((self._client_is, client), ("server", server)):
            parts[side] = spent.total()
            if len(spent) > 1:
                parts |= {f"{side}: {name}": used for name, used in sorted(spent.items())}
        return {**{part: used / jobs / 1000 for part, used in parts.items()}, WAL: (after.wal - before.wal) / jobs}

    def _name(self, pid: int, thread: int, name: str) -> str:
        if thread != pid:
            return re.sub(r"[-_]?\d+$", "", name)
        return "main" if pid == self._client else "claimer"
