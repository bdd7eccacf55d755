"""Empties the outbox in a loop: gate, the next thousand by id, one update; nothing is published.

One owner of everything, on one connection, without partitions, aggregates or destinations: what the database allows.
"""

from __future__ import annotations

import signal
from typing import Final

from benchmarks.ceilings.claims import connect
from salon_jobs.db import statements

_NEXT: Final = b"""
SELECT id, message_id, aggregate_type, aggregate_id, event, payload::text, headers::text, store_id, producer
  FROM salon_jobs_message WHERE status = 'pending' AND id > %s AND id <= %s ORDER BY id LIMIT 1000
"""


def main() -> None:
    """Work until nothing is pending, then wait to be ended."""
    with connect() as connection:
        gate, mark = (statements.load(name).encode() for name in ("gate", "mark_published"))
        after = 0
        while True:
            row = connection.execute(gate).fetchone()
            rows = connection.execute(_NEXT, (after, 0 if row is None else row[1])).fetchall()
            if not rows:
                break
            after = rows[-1][0]
            connection.execute(
                mark, {"ids": [each[0] for each in rows], "message_ids": [each[1] for each in rows]}, prepare=False
            )
    signal.pause()


if __name__ == "__main__":
    main()
