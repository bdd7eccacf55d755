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
        finish = statements.load("finish_many").encode()
        while rows := claim(connection, process_id, "bench-noop"):
            ids, fences = [row[0] for row in rows], [row[0] ^ row[_LEASE] for row in rows]
            parameters = {"ids": ids, "fences": fences, "process_id": process_id, "keep": False, "ran_s": []}
            parameters |= {"has_results": False, "results": None}
            connection.execute(finish, parameters, prepare=False).fetchall()
    signal.pause()


if __name__ == "__main__":
    main()
