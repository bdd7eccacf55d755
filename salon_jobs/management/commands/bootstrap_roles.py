"""Create the database roles; run once before ``migrate``, and again at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from salon_jobs.access.bootstrap import bootstrap, build_scripts, render_psql
from salon_jobs.conf import settings as conf
from salon_jobs.management.arguments import add_options
from salon_jobs.management.notes import as_command_error, ask, plain_notes, warn_of_kept_passwords


class Command(BaseCommand):
    """Command that bootstraps by ``BOOTSTRAP_URL``, or prints the SQL for psql."""

    help = "Create or correct the database roles, by BOOTSTRAP_URL. Idempotent. Run it before migrate."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", metavar="NAME", help="the database to prepare; created if missing")
        add_options(parser, "--share-roles")
        parser.add_argument(
            "--change-passwords", action="store_true", help="give existing roles the passwords in ROLE_PASSWORDS"
        )
        parser.add_argument("--yes", "--no-input", "--noinput", action="store_true", help="do not ask for confirmation")
        parser.add_argument("--print", action="store_true", dest="print_only", help="print the SQL for psql instead")

    def handle(self, *args: Any, **options: Any) -> None:
        if conf.roles.one_user:
            raise CommandError("SALON_JOBS['ROLES'] is not set: with one database user there is nothing to bootstrap.")
        if options["print_only"]:
            self.stdout.write(render_psql(build_scripts(conf.roles)), ending="")
            return
        if conf.bootstrap_url is None:
            raise CommandError("SALON_JOBS['BOOTSTRAP_URL'] is not set: name the URL of who creates the roles")

        def confirm(names: Sequence[str], shared: Mapping[str, str]) -> None:
            if options["yes"]:
                return
            by_databases: dict[str, list[str]] = {}
            for name, others in shared.items():
                by_databases.setdefault(others, []).append(name)
            also = "".join(f" Used in {others}, too: {', '.join(each)}." for others, each in by_databases.items())
            ask(f"Change the passwords of {', '.join(names)}?{also}", self.stderr, otherwise="nothing was changed")

        with as_command_error(), plain_notes(self.stderr):
            done = bootstrap(
                conf.bootstrap_url,
                roles=conf.roles,
                passwords=conf.role_passwords,
                database=options["database"],
                share_roles=options["share_roles"],
                change_passwords=confirm if options["change_passwords"] else None,
            )
            changed = [f"{name} ({', '.join(what)})" for name, what in done.changed.items()]
            shared = [f"{name} (with {others})" for name, others in done.shared.items()]
            which = (
                ""
                if options["database"] is not None
                else ", the one in BOOTSTRAP_URL; --database NAME prepares another"
            )
            self.stdout.write(f"{'created database' if done.created_database else 'database'} {done.database}{which}")
            for label, names in (("made", done.made), ("kept", done.kept), ("changed", changed), ("shared", shared)):
                if names:
                    self.stdout.write(f"{label}: {', '.join(names)}")
            warn_of_kept_passwords(done.other_passwords, self.stderr)
