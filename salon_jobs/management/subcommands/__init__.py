"""Subcommands of ``manage.py salon_jobs``, one file for each group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from django.core.management.base import CommandParser

from salon_jobs.management.output import Console
from salon_jobs.verbs import Verb


class Subcommand(ABC):
    """Subcommand that declares its options and calls the functions that do the work, on ``console.using``."""

    name: str
    help: str
    # Whether that alias must connect as the operator or the worker.
    needs_role: bool = True
    # The exit status after an error, and what mends one of the database.
    error_status: int = 1
    remedy: str = ""

    @abstractmethod
    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""

    @abstractmethod
    def run(self, console: Console) -> None:
        """Do the work. Raises CommandError; the caller reports SalonJobsError and database errors in one line."""


class VerbSubcommand(Subcommand):
    """Subcommand of an operators' verb."""

    def __init__(self, verb: Verb) -> None:
        self.verb, self.name, self.help = verb, verb.name, verb.help


def add_group(parser: CommandParser, subcommands: Sequence[Subcommand], dest: str, metavar: str) -> None:
    """Add subcommands to a parser, each with a parser of its own."""
    chosen = parser.add_subparsers(dest=dest, title=f"{metavar.lower()}s", metavar=metavar)
    for each in subcommands:
        each.add_arguments(chosen.add_parser(each.name, help=each.help, description=each.help))
