"""Base of the commands that run until they are stopped."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.utils.translation import override

from salon_jobs.conf import debug
from salon_jobs.conf import settings as conf
from salon_jobs.conf.reader import LEVELS
from salon_jobs.conf.sections import FORMATS
from salon_jobs.core.program import replace_closed_streams
from salon_jobs.dashboard.facts import Facts
from salon_jobs.dashboard.verdict import problems
from salon_jobs.management.arguments import ShortParser, address, log_level
from salon_jobs.management.notes import as_command_error, plain_notes
from salon_jobs.process.logs import configure_logging, terminal_of
from salon_jobs.process.reloader import Reloader
from salon_jobs.process.service import MakeLoop, Service, die_with_parent, release


class ServiceCommand(BaseCommand):
    """Command that runs one service until SIGTERM, SIGINT or SIGHUP, or until no work is left (``--burst``).

    A second signal forces the end.
    """

    # Checks of models query the database's version, but this process must start and report without a database.
    requires_system_checks = ("salon_jobs",)

    @property
    def using(self) -> str:
        """The alias of the job tables."""
        return conf.database

    # Set by Django, to False when it runs through call_command.
    _called_from_command_line: bool
    # Subcommand of ``salon_jobs`` that runs the same, whatever other apps call theirs.
    alias: ClassVar[str]
    health_port: ClassVar[int]
    burst_help: ClassVar[str]

    def __init__(self, *args: Any, **options: Any) -> None:
        """Prepare to write to the standard streams, even if they are closed."""
        replace_closed_streams()
        super().__init__(*args, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options that all services have."""
        parser.__class__ = ShortParser  # Django names its own class; those of subcommands follow this one
        parser.add_argument("--burst", action="store_true", help=f"{self.burst_help}, then exit with 0")
        parser.add_argument(
            "--reload",
            action="store_true",
            default=None,
            help="restart when a Python file changes; the default with DEBUG, except in a burst",
        )
        parser.add_argument("--no-reload", action="store_false", dest="reload", help="do not restart")
        parser.add_argument("--reloaded", action="store_true", help=argparse.SUPPRESS)
        # The terminal that shows the lines of a child's pipe.
        parser.add_argument("--terminal", choices=("plain", "coloured"), help=argparse.SUPPRESS)
        parser.add_argument(
            "--health-addr",
            type=address,
            metavar="HOST:PORT",
            help=(
                f"address of /healthz, /readyz and /metrics (default 127.0.0.1:{self.health_port}; any free port for "
                "port 0 or a burst)"
            ),
        )
        parser.add_argument(
            "--log-format",
            choices=FORMATS,
            help="default SALON_JOBS['LOGGING']['FORMAT'], or text on a terminal and json otherwise",
        )
        parser.add_argument(
            "--log-level",
            type=log_level,
            choices=LEVELS,
            help="in upper or lower case; default SALON_JOBS['LOGGING']['LEVEL']",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the service, or the reloader that runs it as its child."""
        with as_command_error(), plain_notes(self.stderr):
            configure_output(options)
            if options["reload"] and options["burst"]:
                raise CommandError("--reload does not go with --burst")
            by_default = debug() and not options["burst"] and self._called_from_command_line
            if options["reloaded"]:
                die_with_parent()
            elif by_default if options["reload"] is None else options["reload"]:
                sys.exit(Reloader([*self.command_line(options), "--reloaded"]).run())
            self.serve(options)

    def serve(self, options: dict[str, Any]) -> None:
        """Run the service. SalonJobsError and database errors are reported in one line."""
        raise NotImplementedError

    def run_service(
        self, kind: str, make_loop: MakeLoop, options: dict[str, Any], *, facts: Mapping[str, str], **more: Any
    ) -> None:
        """Run the loop as a process of this kind; a burst takes any free port, so that it runs alongside a worker.

        On a terminal, first write a banner: ``facts`` about the service, its database, and how to stop it.
        """
        burst = options["burst"]
        address = options["health_addr"] or ("127.0.0.1", 0 if burst else self.health_port)
        verdict = partial(sentences, self.using)
        service = Service(
            kind, make_loop, using=self.using, health_address=address, burst=burst, verdict=verdict, **more
        )
        if options["terminal"] and options["log_format"] == "text":
            from salon_jobs.management.output import Console  # noqa: PLC0415 - loads rich, which few processes need

            database: Mapping[str, Any] = connections[self.using].settings_dict
            where = f"{database['HOST'] or 'local socket'}{':' if database['PORT'] else ''}{database['PORT']}"
            shown = {
                **facts,
                "database": f"{database['NAME']} at {where} as {database['USER']}",
                "health": "none" if service.address is None else "http://{}:{}/readyz".format(*service.address),
            }
            colours = {"force_color": options["terminal"] == "coloured", "no_color": True}
            console = Console(colours, self.stdout, self.stderr)
            console.heading(f"salon_jobs {release()} {self.alias}".replace("  ", " "))
            console.facts(shown)
            console.write(
                "Runs until nothing is due." if burst else "Press Ctrl-C to stop; press it again to stop at once."
            )
            self.stdout.flush()
        service.run()

    def command_line(self, options: dict[str, Any]) -> list[str]:
        """Return the command line that starts this process again, by manage.py, django-admin or -m.

        It passes on the format of the log and the terminal, since a child writes to a pipe. After ``call_command``, the
        process's own command line is another program's.
        """
        passed_on = ("log_format", "log_level", "terminal")
        log_options = {f"--{name.replace('_', '-')}": options[name] for name in passed_on}
        words = [word for name, value in log_options.items() if value is not None for word in (name, value)]
        if self._called_from_command_line:
            return [sys.executable, *sys.orig_argv[1:], *words]
        return [sys.executable, "-m", "django", "salon_jobs", self.alias, *words]


def sentences(using: str) -> list[str]:
    """Return the problems of the deployment, for everybody, in English: programs read them."""
    with override(None):
        return [each.public_sentence for each in problems(Facts(using=using))]


def configure_output(options: dict[str, Any]) -> None:
    """Configure logging by a service's options, and set in them its format and its terminal, if it has one."""
    terminal = options["terminal"] = options["terminal"] or terminal_of(options)
    options["log_format"] = configure_logging(
        level=options["log_level"], log_format=options["log_format"], terminal=terminal
    )
