"""``salon_jobs doctor`` and ``salon_jobs convert``."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import psycopg
from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.access.bootstrap import bootstrap
from salon_jobs.access.doctor.catalogue import Drift, as_superuser, by_alias, database_name
from salon_jobs.access.doctor.conversion import convert, plan_conversion
from salon_jobs.access.doctor.examination import Examination, examine, fix, fixable
from salon_jobs.conf import settings as conf
from salon_jobs.management.arguments import add_options
from salon_jobs.management.output import ask, warn_of_kept_passwords
from salon_jobs.management.subcommands import Subcommand


class Doctor(Subcommand):
    """Subcommand that lists differences between database and declaration with the SQL to fix them, and can run it."""

    name = "doctor"
    help = "Compare roles, rights, policies and functions of the database with the declaration. Any role may run it."
    needs_role = False

    def add_arguments(self, parser: CommandParser) -> None:
        who = parser.add_mutually_exclusive_group()
        who.add_argument("--database", metavar="ALIAS", help="connect through this alias (default OPERATOR_DATABASE)")
        who.add_argument("--superuser", action="store_true", help="connect through BOOTSTRAP_URL, which sees all rows")
        parser.add_argument("--skip-orphans", action="store_true", help="do not read tables for orphans")
        parser.add_argument("--fail", action="store_true", help="exit with 1 if there is a drift")
        parser.add_argument(
            "--fix", action="store_true", help="run the statements, as superuser unless --database is given"
        )
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        parser.add_argument("--json", action="store_true", help="write what was found as JSON")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Compare, report, and fix if asked. Raises CommandError with --fail, or without a terminal."""
        with _connection(options) as connection:
            examination = examine(connection, using=conf.database, with_orphans=not options["skip_orphans"])
            remaining: Sequence[Drift] = examination.drifts
            if options["json"]:
                out.write(json.dumps(asdict(examination), indent=2))
            else:
                _write(examination, out, err)
            if options["fix"] and (fixes := fixable(examination.drifts)):
                if not options["yes"]:
                    ask(f"Fix {len(fixes):,} of them?", err, otherwise="nothing was fixed")
                fixed = fix(connection, using=conf.database, with_orphans=not options["skip_orphans"])
                err.write(f"fixed: {len(fixed):,}")
                remaining = [drift for drift in examination.drifts if drift.needs_decision]
                if remaining:
                    err.write(f"left for you to decide: {len(remaining):,}")
        if options["fail"] and remaining:
            raise CommandError(f"the database is not as declared: {_counted(remaining)}")


@contextmanager
def _connection(options: dict[str, Any]) -> Generator[psycopg.Connection[Any]]:
    if options["superuser"] or (options["fix"] and options["database"] is None):
        with as_superuser(using=conf.database) as connection:
            yield connection
    else:
        yield by_alias(options["database"] or conf.reader_database)


def _write(examination: Examination, out: OutputWrapper, err: OutputWrapper) -> None:
    for drift in examination.drifts:
        out.write(f"{drift.kind}: {drift.where}")
        lines = [("expected", drift.expected), ("found", drift.found)]
        lines += [("decide" if drift.needs_decision else "fix", f"{statement};") for statement in drift.fix]
        lines += [("hint", drift.hint)] if drift.hint else []
        for label, text in lines:
            out.write(f"  {label:<10}{text}")
        out.write("")
    for text in examination.not_checked:
        err.write(f"not checked: {text}")
    out.write(f"{examination.database}, as {examination.role}: {_counted(examination.drifts)}")


def _counted(drifts: Sequence[Drift]) -> str:
    return {0: "no drift", 1: "1 drift"}.get(len(drifts), f"{len(drifts):,} drifts")


class Convert(Subcommand):
    """Subcommand that converts the database to what ``ROLES`` says: roles, or one user."""

    name = "convert"
    help = "Convert the database from one user to roles, or back, as SALON_JOBS['ROLES'] says. Connects as superuser."
    needs_role = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--share-roles", action="store_true", help="use roles that other databases on the server already use"
        )
        add_options(parser, "--yes", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Ask, bootstrap the roles if the settings have any, convert. Raises CommandError, SalonJobsError."""
        with as_superuser(using=conf.database) as connection:
            plan = plan_conversion(connection, using=conf.database)
            if plan is None:
                raise CommandError(
                    "nothing to convert: the database is what SALON_JOBS['ROLES'] says; python manage.py salon_jobs "
                    "doctor shows what differs"
                )
            what = "roles" if plan.to_roles else f"the one user {plan.owner}"
            if not options["yes"]:
                ask(
                    f"Convert database {plan.database} from {', '.join(plan.former)} to {what}?",
                    err,
                    otherwise="nothing was converted",
                )
            if conf.roles is not None and conf.bootstrap_url is not None:
                done = bootstrap(
                    conf.bootstrap_url,
                    roles=conf.roles,
                    passwords=conf.role_passwords,
                    extra_owner_roles=conf.extra_owner_roles,
                    database=database_name(conf.database),
                    share_roles=options["share_roles"],
                    takes_over=True,
                )
                warn_of_kept_passwords(done.other_passwords, err)
            policies = convert(connection, plan, using=conf.database)
        if options["json"]:
            out.write(
                json.dumps({**asdict(plan), "undeclared_policies": [str(policy) for policy in policies]}, indent=2)
            )
            return
        out.write(f"{plan.database} belongs to {plan.owner} now, which took over from {', '.join(plan.former)}")
        for policy in policies:
            err.write(f"still names a former role, and is not declared: policy {policy}")
