"""Compares the live database with what is declared: ``salon_jobs doctor``."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import psycopg
from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.doctor.connecting import as_superuser, by_alias
from salon_jobs.doctor.drift import Drift
from salon_jobs.doctor.examination import Examination, examine
from salon_jobs.doctor.mending import mend, mendable
from salon_jobs.management.asking import ask
from salon_jobs.management.subcommands.base import Subcommand


class Doctor(Subcommand):
    """Names every drift between declaration and catalogue with the statements that mend it, and runs them if asked."""

    name = "doctor"
    help = "Compare roles, rights, policies and functions of the database with the declaration; any role may."
    needs_role = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        who = parser.add_mutually_exclusive_group()
        who.add_argument("--database", metavar="ALIAS", help="connect by this alias (default OPERATOR_DATABASE)")
        who.add_argument("--superuser", action="store_true", help="connect by BOOTSTRAP_URL, which sees all rows")
        parser.add_argument("--skip-orphans", action="store_true", help="do not read tables for orphans")
        parser.add_argument("--fail", action="store_true", help="exit with 1 when there is a drift")
        parser.add_argument("--mend", action="store_true", help="run the statements, as superuser unless --database")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write what was found as JSON")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Compare, tell, mend if asked. Raises CommandError with --fail, or when nobody can be asked."""
        with _connection(options) as connection:
            found = examine(connection, with_orphans=not options["skip_orphans"])
            left: Sequence[Drift] = found.drifts
            if options["json"]:
                out.write(json.dumps(asdict(found), indent=2))
            else:
                _tell(found, out, err)
            if options["mend"] and (mends := mendable(found.drifts)):
                if not options["yes"]:
                    ask(f"Mend {len(mends):,} of them?", err, otherwise="nothing was mended", remedy="add --yes")
                err.write(f"mended: {len(mend(connection, with_orphans=not options['skip_orphans'])):,}")
                left = [drift for drift in found.drifts if drift.is_decision]
        if options["fail"] and left:
            raise CommandError(f"the database is not as declared: {_counted(left)}")


@contextmanager
def _connection(options: dict[str, Any]) -> Generator[psycopg.Connection[Any]]:
    if options["superuser"] or (options["mend"] and options["database"] is None):
        with as_superuser() as connection:
            yield connection
    else:
        yield by_alias(options["database"] or conf.reader_database)


def _tell(found: Examination, out: OutputWrapper, err: OutputWrapper) -> None:
    for drift in found.drifts:
        out.write(f"{drift.kind}: {drift.where}")
        lines = [("expected", drift.expected), ("found", drift.seen)]
        lines += [("decide" if drift.is_decision else "mend", f"{statement};") for statement in drift.mend]
        lines += [("hint", drift.hint)] if drift.hint else []
        for label, text in lines:
            out.write(f"  {label:<10}{text}")
        out.write("")
    for text in found.not_looked_at:
        err.write(f"not looked at: {text}")
    out.write(f"{found.database}, as {found.role}: {_counted(found.drifts)}")


def _counted(drifts: Sequence[Drift]) -> str:
    return {0: "no drift", 1: "1 drift"}.get(len(drifts), f"{len(drifts):,} drifts")
