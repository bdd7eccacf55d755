"""Runs the statements that mend what was found."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from salon_jobs.core.errors import MendIncomplete
from salon_jobs.doctor.drift import Drift
from salon_jobs.doctor.examination import examine
from salon_jobs.tenancy.brief_locks import LOCK_TIMEOUT

# One mend can show what it hid: a table's former owner keeps rights that only then are more than declared.
_ROUNDS: Final = 3


def mend(connection: psycopg.Connection[Any], *, with_orphans: bool = True) -> tuple[Drift, ...]:
    """Run the mends of all drifts that need no decision, in one transaction; returns the drifts that were mended.

    For a superuser, or for the migrator where no role and no owner's function is concerned. Waits briefly for each
    table's lock. Raises MendIncomplete, and nothing is changed, when a statement is refused or drifts are left.
    """
    mended: list[Drift] = []
    drifts: list[Drift] = []
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        for _ in range(_ROUNDS):
            # A key that was made is yet to be validated.
            looks = not mended or any(drift.kind == "foreign key" for drift in drifts)
            drifts = mendable(examine(connection, with_orphans=with_orphans and looks).drifts)
            if not drifts:
                break
            for drift in drifts:
                for statement in drift.mend:
                    run(connection, statement)
            mended += drifts
        else:
            raise MendIncomplete("; ".join(map(str, drifts)))
    return tuple(mended)


def run(connection: psycopg.Connection[Any], statement: str) -> None:
    """Run one statement. Raises MendIncomplete with the server's words and the statement."""
    try:
        connection.execute(statement.encode())
    except psycopg.Error as error:
        raise MendIncomplete(f"{str(error).strip()}: {statement}") from error


def mendable(drifts: tuple[Drift, ...]) -> list[Drift]:
    """Return those whose mend needs no decision."""
    return [drift for drift in drifts if not drift.is_decision]
