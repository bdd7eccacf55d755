"""``salon_jobs doctor`` and ``salon_jobs convert``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from salon_jobs.access.bootstrap import bootstrap
from salon_jobs.access.doctor.catalogue import Drift, as_superuser, by_alias, database_name
from salon_jobs.access.doctor.conversion import convert, plan_conversion
from salon_jobs.access.doctor.examination import Examination, examine, fix, fixable
from salon_jobs.conf import settings as conf
from salon_jobs.core.units import with_noun
from salon_jobs.management.arguments import add_options
from salon_jobs.management.notes import warn_of_kept_passwords
from salon_jobs.management.output import Console
from salon_jobs.management.subcommands import Subcommand


class Doctor(Subcommand):
    """Subcommand that lists differences between database and declaration with the SQL to fix them, and can run it."""

    name = "doctor"
    help = "Compare roles, rights, policies and functions of the database with the declaration. Any role may run it."
    needs_role = False

    def add_arguments(self, parser: CommandParser) -> None:
        who = parser.add_mutually_exclusive_group()
        who.add_argument("--database", metavar="ALIAS", help="connect through this alias (default OPERATOR_DATABASE)")
        who.add_argument(
            "--superuser", action="store_true", help="connect through BOOTSTRAP_URL; a superuser sees all rows"
        )
        parser.add_argument("--skip-orphans", action="store_true", help="do not read tables for orphans")
        parser.add_argument("--fail", action="store_true", help="exit with 1 if there is a drift")
        parser.add_argument(
            "--fix", action="store_true", help="run the statements, through BOOTSTRAP_URL unless --database is given"
        )
        add_options(parser, "--yes", "--json")

    def run(self, console: Console) -> None:
        """Compare, report, and fix if asked. Raises CommandError with --fail, or without a terminal."""
        what: dict[str, Any] = {"using": console.database, "with_orphans": not console["skip_orphans"]}
        as_super = console["superuser"] or (console["fix"] and console["database"] is None)
        # Only a superuser's connection is closed.
        superuser = as_superuser(using=console.database) if as_super else None
        with superuser or nullcontext(by_alias(console["database"] or console.using)) as connection:
            examination = examine(connection, **what)
            remaining: Sequence[Drift] = examination.drifts
            if console["json"]:
                console.result(asdict(examination), "")
            else:
                _write(examination, console)
            if console["fix"] and (fixes := fixable(examination.drifts)):
                console.confirm(f"Fix {len(fixes):,} of them?", otherwise="nothing was fixed")
                console.note(f"fixed: {len(fix(connection, **what)):,}")
                remaining = [drift for drift in examination.drifts if drift.needs_decision]
                if remaining:
                    console.note(f"left for you to decide: {len(remaining):,}")
        if console["fail"] and remaining:
            raise CommandError(f"the database is not as declared: {_counted(remaining)}")


def _write(examination: Examination, console: Console) -> None:
    for drift in examination.drifts:
        console.write(f"{drift.kind}: {drift.where}")
        lines = [("expected", drift.expected), ("found", drift.found)]
        lines += [("decide" if drift.needs_decision else "fix", f"{statement};") for statement in drift.fix]
        lines += [("hint", drift.hint)] if drift.hint else []
        for label, text in lines:
            console.write(f"  {label:<10}{text}")
        console.write("")
    for text in examination.not_checked:
        console.note(f"not checked: {text}")
    if examination.bound_owners:
        console.note(f"without BYPASSRLS, so that policies show them all rows: {', '.join(examination.bound_owners)}")
    console.write(f"{examination.database}, as {examination.role}: {_counted(examination.drifts)}")


def _counted(drifts: Sequence[Drift]) -> str:
    return with_noun(len(drifts), "drift") if drifts else "no drift"


class Convert(Subcommand):
    """Subcommand that converts the database to the form in ``ROLES``: roles, or one user."""

    name = "convert"
    help = "Convert the database from one user to roles, or back, as ROLES says. Connects through BOOTSTRAP_URL."
    needs_role = False

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser, "--share-roles", "--yes", "--json")

    def run(self, console: Console) -> None:
        """Ask, bootstrap the roles if the settings have any, convert. Raises CommandError, SalonJobsError."""
        with as_superuser(using=console.database) as connection:
            plan = plan_conversion(connection, using=console.database)
            if plan is None:
                raise CommandError(
                    "nothing to convert: the database is what SALON_JOBS['ROLES'] says; python manage.py salon_jobs "
                    "doctor shows what differs"
                )
            what = "roles" if plan.to_roles else f"the one user {plan.owner}"
            question = f"Convert database {plan.database} from {', '.join(plan.former)} to {what}?"
            console.confirm(question, otherwise="nothing was converted")
            if plan.to_roles and conf.bootstrap_url is not None:
                done = bootstrap(
                    conf.bootstrap_url,
                    roles=conf.roles,
                    passwords=conf.role_passwords,
                    database=database_name(console.database),
                    share_roles=console["share_roles"],
                    takes_over=True,
                )
                warn_of_kept_passwords(done.other_passwords, console.err)
            policies = convert(connection, plan, using=console.database)
        console.result(
            {**asdict(plan), "undeclared_policies": [str(policy) for policy in policies]},
            f"{plan.database} belongs to {plan.owner} now, which took over from {', '.join(plan.former)}",
        )
        for policy in () if console["json"] else policies:
            console.note(f"still names a former role, and is not declared: policy {policy}")
