"""Sends messages that were skipped: ``salon_jobs messages send-skipped``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db.models import Q

from salon_jobs.conf import settings as conf
from salon_jobs.core.messages import EVENT_SKIPPED, TOPIC_DENIED, MessageStatus
from salon_jobs.management.asking import ask
from salon_jobs.management.operating import tell
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.subcommands.messages.criteria import FILTERS, add_filters, chosen, message_id, numbers
from salon_jobs.outbox.send_skipped import send_skipped_messages


class SendSkipped(Subcommand):
    """Messages named by ids, or all that a list of the settings skipped and the options name together."""

    name = "send-skipped"
    help = "Send messages after all that a list of the settings skipped, under their own ids."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", nargs="*", type=message_id, help="numbers or uuids of messages, skipped by whomever")
        add_filters(parser)
        parser.add_argument(
            "--code", action="append", metavar="CODE",
            help=f"skipped for this reason; repeatable (default {TOPIC_DENIED} and {EVENT_SKIPPED})",
        )  # fmt: skip
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write a list of objects, one for each message")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Count, ask, send, tell. Raises CommandError when nothing was named, or nobody can be asked."""
        ids = self._ids(options)
        if ids and not options["yes"]:
            question = f"Send {len(ids):,} skipped messages ({min(ids)} to {max(ids)})?"
            ask(question, err, otherwise="nothing is sent", remedy="add --yes")
        results = send_skipped_messages(ids, using=conf.reader_database)
        tell(results, "to be sent", lambda result: result.id, as_json=options["json"], out=out)

    def _ids(self, options: dict[str, Any]) -> Sequence[int]:
        filtered = any(options[name] is not None for name in FILTERS)
        if bool(options["id"]) == filtered or (options["id"] and options["code"]):
            raise CommandError(
                "name the messages by ids, or those that a list skipped by --aggregate-type, --event, --store …"
            )
        if options["id"]:
            return numbers(options["id"])
        reasons = Q()
        for code in options["code"] or (TOPIC_DENIED, EVENT_SKIPPED):
            reasons |= Q(last_error=code) | Q(last_error__startswith=f"{code} ")
        skipped, _ = chosen(options, MessageStatus.SKIPPED)
        return sorted(skipped.filter(reasons).values_list("pk", flat=True))
