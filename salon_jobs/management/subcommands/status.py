"""``salon_jobs status``."""

from __future__ import annotations

import sys

from django.core.management.base import CommandParser

from salon_jobs.dashboard.facts import Facts
from salon_jobs.dashboard.verdict import nothing_to_do, problems
from salon_jobs.management.arguments import add_options
from salon_jobs.management.output import Console
from salon_jobs.management.subcommands import Subcommand


class Status(Subcommand):
    """Subcommand that writes the verdict: a sentence for each problem."""

    name = "status"
    help = (
        "List what needs somebody, the worst first, each with its remedy; exit with 1 if there is anything, with 2 if "
        "that cannot be read."
    )
    error_status = 2
    remedy = (
        "\nSo it is unknown whether there is a problem: see that the server runs, and that the alias of"
        " SALON_JOBS['OPERATOR_DATABASE'], or else of DATABASE, leads to it"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser, "--json")

    def run(self, console: Console) -> None:
        """Write the problems, and exit with 1 if there are any."""
        found = problems(Facts(using=console.using))
        if console["json"]:
            console.result({"problems": [each.as_json() for each in found]}, "")
        else:
            for sentence in [each.sentence for each in found] or [nothing_to_do()]:
                console.write(sentence)
        if found:
            console.out.flush()
            sys.exit(1)
