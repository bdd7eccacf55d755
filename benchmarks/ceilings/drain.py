"""Empties the queue in a loop: our claim of 500, our finish of 500, on one connection, and nothing else."""

from __future__ import annotations

import signal

from benchmarks.ceilings.claims import claim, connect, register
from salon_jobs.db import statements

_LEASE = 9


def main() -> None:
    """Work until nothing is due, then wait to be ended."""
    with connect() as connection:
        process_id = register(connection)
        finish = statements.load("finish_unlocked").encode()
        while rows := claim(connection, process_id, "bench-noop"):
            ids, leases = [row[0] for row in rows], [row[_LEASE] for row in rows]
            lease = leases[0] if len(set(leases)) == 1 else None
            fence = {"ids": ids, "leases": leases, "lease": lease, "process_id": process_id}
            connection.execute(finish, fence, prepare=False).fetchall()
    signal.pause()


if __name__ == "__main__":
    main()
