"""Empties the outbox in a loop: gate, the next thousand in order, one update; nothing is published, no order is kept.

The one who owns all partitions, on one connection: what the database alone allows (DESIGN: the partition owner).
"""

from __future__ import annotations

import signal
from typing import Final

from benchmarks.ceilings.claims import connect
from benchmarks.messages import NOWHERE
from salon_jobs import sql
from salon_jobs.core.messages import PARTITIONS

_BATCH: Final = 1000


def main() -> None:
    """Work until nothing is pending, then wait to be ended."""
    with connect() as connection:
        gate, fetch, mark = (sql.load(name).encode() for name in ("gate", "fetch_messages", "mark_published"))
        after = [0] * PARTITIONS
        asked = {
            "types": [NOWHERE] * PARTITIONS, "partitions": list(range(PARTITIONS)),
            "takes": [_BATCH // PARTITIONS + 1] * PARTITIONS, "held": [],
        }  # fmt: skip
        while True:
            row = connection.execute(gate).fetchone()
            bound = 0 if row is None else row[1]
            rows = connection.execute(fetch, {**asked, "afters": after, "bound": bound}, prepare=False).fetchall()
            if not rows:
                break
            for message in rows:
                after[message[11]] = message[0]
            connection.execute(mark, {"ids": [message[0] for message in rows]}, prepare=False)
    signal.pause()


if __name__ == "__main__":
    main()
