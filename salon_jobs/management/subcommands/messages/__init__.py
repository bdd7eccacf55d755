"""Holds what operators do with messages: ``salon_jobs messages ACTION``, one file for each kind of action."""

from __future__ import annotations

from typing import Any, Final

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.subcommands.messages.destination import PauseDestination, ResumeDestination
from salon_jobs.management.subcommands.messages.gate import Gate
from salon_jobs.management.subcommands.messages.listing import List
from salon_jobs.management.subcommands.messages.on_messages import RetryMessages, SkipMessages
from salon_jobs.management.subcommands.messages.parked import Parked, Unpark
from salon_jobs.management.subcommands.messages.replay import ReplayMessages
from salon_jobs.management.subcommands.messages.send_skipped import SendSkipped
from salon_jobs.management.subcommands.messages.show import Show

ACTIONS: Final[tuple[Subcommand, ...]] = (
    List(), Show(), RetryMessages(), SkipMessages(), SendSkipped(), Parked(), Unpark(), ReplayMessages(),
    PauseDestination(), ResumeDestination(), Gate(),
)  # fmt: skip


class Messages(Subcommand):
    """Looks at messages and changes them: a subcommand with subcommands."""

    name = "messages"
    help = "See messages, retry, skip and replay them, unpark aggregates, pause destinations."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the actions."""
        chosen = parser.add_subparsers(dest="action", title="actions", metavar="ACTION")
        for each in ACTIONS:
            each.add_arguments(chosen.add_parser(each.name, help=each.help, description=each.help))

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Run the action. Raises CommandError when none is named."""
        named = {each.name: each for each in ACTIONS}
        if options["action"] is None:
            raise CommandError(f"name an action: {', '.join(named)}")
        named[options["action"]].run(options, out, err)
