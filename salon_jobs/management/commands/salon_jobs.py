"""Run the services, and inspect and change jobs and the database: ``python manage.py salon_jobs SUBCOMMAND``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import override

from salon_jobs.conf import settings as conf
from salon_jobs.core.arguments import check_text
from salon_jobs.db.clock import now, one_instant
from salon_jobs.management.arguments import FromNow, ShortParser, unknown_names
from salon_jobs.management.commands import consume_queue, relay_outbox, runscheduler, runworker
from salon_jobs.management.notes import as_command_error, plain_notes
from salon_jobs.management.service import ServiceCommand
from salon_jobs.process.preflight import check_role

_INTERRUPTED: Final = 130
_PIPE_CLOSED: Final = 141
# Of an argument; names are far shorter, and the database bounds them.
_LONGEST: Final = 1_000_000
_SERVICES: Final[dict[str, type[ServiceCommand]]] = {
    module.Command.alias: module.Command for module in (runworker, runscheduler, relay_outbox, consume_queue)
}


class Command(BaseCommand):
    """Command that runs one subcommand, as the role of ``OPERATOR_DATABASE`` if it concerns jobs.

    A service runs as the worker role, like its own command, whose name another app may use too. Without a subcommand,
    lists them.
    """

    help = (
        "Inspect and change jobs, messages, limits and cron entries of all stores, through OPERATOR_DATABASE; "
        "check the database; run a worker, scheduler, relay or consumer."
    )
    requires_system_checks = ("salon_jobs",)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run a service as Django runs a command of its own, so that Django's options may follow, as in a child's."""
        if service := _SERVICES.get(argv[2] if len(argv) > 2 else ""):
            service().run_from_argv([argv[0], " ".join(argv[1:3]), *argv[3:]])
        else:
            super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.__class__ = ShortParser  # Django names its own class; those of subcommands follow this one
        self._show_help = parser.print_help
        chosen = parser.add_subparsers(dest="subcommand", title="subcommands", metavar="SUBCOMMAND")
        for name, service in _SERVICES.items():
            service().add_arguments(chosen.add_parser(name, help=service.help, description=service.help))
        # They print, so they load rich, which no service needs.
        from salon_jobs.management.subcommands.registry import SUBCOMMANDS  # noqa: PLC0415

        self._subcommands = {each.name: each for each in SUBCOMMANDS}
        for each in SUBCOMMANDS:
            each.add_arguments(chosen.add_parser(each.name, help=each.help, description=each.help))

    def handle(self, *args: Any, **options: Any) -> None:
        if options["subcommand"] is None:
            self._show_help(self.stdout)
            return
        if service := _SERVICES.get(options["subcommand"]):
            command = service()
            command.stdout, command.stderr = self.stdout, self.stderr
            command.handle(*args, **options)
            return
        chosen = self._subcommands[options["subcommand"]]
        # Nothing is translated: programs read the output, and texts of this command are in English.
        with (
            override(None),
            as_command_error(chosen.error_status, chosen.remedy),
            plain_notes(self.stderr),
            one_instant(conf.reader_database),
        ):
            if not conf.roles.one_user and chosen.needs_role:
                check_role(conf.reader_database, conf.roles.operator if conf.operator_database else conf.roles.worker)
            # Before the first query: the shell passes on bytes that are not text, as lone surrogates.
            for name, value in options.items():
                for text in value if hasattr(value, "append") else [value]:
                    if isinstance(text, str):
                        check_text(name, text, _LONGEST, least=0)
                if isinstance(value, FromNow):
                    options[name] = now() + value.distance
            for note in unknown_names(options):
                self.stderr.write(note)
            from salon_jobs.management.output import Console  # noqa: PLC0415 - as above

            try:
                chosen.run(Console(options, self.stdout, self.stderr))
                self.stdout.flush()  # a full disk must not look like success
            except BrokenPipeError:
                # As programs do when their reader has closed the pipe (``| head``): drop the remaining output.
                with Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), sys.stdout.fileno())
                sys.exit(_PIPE_CLOSED)
            except KeyboardInterrupt:
                raise CommandError("interrupted; changes made before that remain", returncode=_INTERRUPTED) from None
