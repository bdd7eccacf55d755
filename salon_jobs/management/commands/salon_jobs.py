"""Inspect and change jobs and the database as an operator: ``python manage.py salon_jobs SUBCOMMAND``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from salon_jobs.conf import settings as conf
from salon_jobs.management.arguments import unknown_names
from salon_jobs.management.output import as_command_error
from salon_jobs.management.subcommands import SUBCOMMANDS
from salon_jobs.process.preflight import check_role

_INTERRUPTED: Final = 130
_PIPE_CLOSED: Final = 141


class Command(BaseCommand):
    """Command that runs one subcommand, those about jobs as the role of ``OPERATOR_DATABASE``.

    Without a subcommand it lists them.
    """

    help = "Show and change jobs and messages of all stores through OPERATOR_DATABASE; check and convert the database."
    requires_system_checks = ("salon_jobs",)

    def add_arguments(self, parser: CommandParser) -> None:
        self._show_help = parser.print_help
        chosen = parser.add_subparsers(dest="subcommand", title="subcommands", metavar="SUBCOMMAND")
        for each in SUBCOMMANDS:
            each.add_arguments(chosen.add_parser(each.name, help=each.help, description=each.help))

    def handle(self, *args: Any, **options: Any) -> None:
        if options["subcommand"] is None:
            self._show_help(self.stdout)
            return
        chosen = next(each for each in SUBCOMMANDS if each.name == options["subcommand"])
        with as_command_error():
            if conf.roles is not None and chosen.needs_role:
                check_role(conf.reader_database, conf.roles.operator if conf.operator_database else conf.roles.worker)
            for note in unknown_names(options):
                self.stderr.write(note)
            try:
                chosen.run(options, self.stdout, self.stderr)
                self.stdout.flush()  # a full disk must not look like success
            except BrokenPipeError:
                _leave_quietly()
            except KeyboardInterrupt:
                raise CommandError("interrupted; changes made before that remain", returncode=_INTERRUPTED) from None


def _leave_quietly() -> None:
    """Exit as programs do when their reader has closed the pipe (``| head``), and drop the remaining output."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    sys.exit(_PIPE_CLOSED)
