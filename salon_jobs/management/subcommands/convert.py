"""Converts a database between one user and roles: ``salon_jobs convert``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.doctor.connecting import as_superuser, database_name
from salon_jobs.doctor.conversion import convert, plan_conversion
from salon_jobs.management.asking import ask
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.tenancy.bootstrap import bootstrap


class Convert(Subcommand):
    """Makes the database what ``ROLES`` says: roles of least privilege, or one user that owns everything."""

    name = "convert"
    help = "Convert the database from one user to roles, or back, as SALON_JOBS['ROLES'] says now; as superuser."
    needs_role = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--share-roles", action="store_true", help="use roles that other databases on the server already use"
        )
        parser.add_argument("--yes", action="store_true", help="do not ask")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Ask, bootstrap the roles where there shall be some, convert. Raises CommandError, SalonJobsError."""
        with as_superuser() as connection:
            plan = plan_conversion(connection)
            if plan is None:
                raise CommandError(
                    "nothing to convert: the database is what SALON_JOBS['ROLES'] says; python manage.py salon_jobs "
                    "doctor shows what differs"
                )
            what = "roles" if plan.to_roles else f"the one user {plan.owner}"
            if not options["yes"]:
                ask(
                    f"Convert database {plan.database} from {', '.join(plan.former)} to {what}?", err,
                    otherwise="nothing was converted", remedy="add --yes",
                )  # fmt: skip
            if conf.roles is not None and conf.bootstrap_url is not None:
                bootstrap(
                    conf.bootstrap_url, roles=conf.roles, passwords=conf.role_passwords,
                    extra_owner_roles=conf.extra_owner_roles, database=database_name(),
                    share_roles=options["share_roles"],
                )  # fmt: skip
            left = convert(connection, plan)
        out.write(f"{plan.database} belongs to {plan.owner} now, who took over from {', '.join(plan.former)}")
        for policy in left:
            err.write(f"still names a former role, and is not declared: policy {policy}")
