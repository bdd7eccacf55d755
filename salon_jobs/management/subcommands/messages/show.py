"""Shows one message: ``salon_jobs messages show``."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.redaction import redacted
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.subcommands.messages.criteria import message_id, numbers
from salon_jobs.management.table import printable_lines
from salon_jobs.models import BlockedAggregate, Message


class Show(Subcommand):
    """Shows everything known of one message, and what holds it back."""

    name = "show"
    help = "Show a message with its payload, its last error and what holds it back."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", type=message_id, help="the number of a message, or its uuid")
        parser.add_argument("--json", action="store_true", help="write an object")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write it. Raises CommandError when there is no such message."""
        [number] = numbers([options["id"]])
        found = Message.objects.using(conf.reader_database).filter(pk=number).values().first()
        if found is None:
            raise CommandError(f"there is no message {number}")
        columns: dict[str, Any] = {**found}
        columns |= {name: redacted(columns[name], conf.redact) for name in ("payload", "headers")}
        shown: dict[str, object] = {**columns, "held_back_by": _holder(columns)}
        if options["json"]:
            out.write(json.dumps(shown, indent=2, default=str))
            return
        for name, value in shown.items():
            is_json = isinstance(value, dict | list)
            text = json.dumps(value, indent=2, default=str, ensure_ascii=False) if is_json else str(value)
            out.write(printable_lines(f"{name}: {text}"))


def _holder(shown: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row that blocks the message's aggregate, its own perhaps."""
    if shown["status"] not in ("pending", "failed"):
        return None
    rows = BlockedAggregate.objects.using(conf.reader_database)
    one = {"aggregate_type": shown["aggregate_type"], "aggregate_id": shown["aggregate_id"]}
    named = rows.filter(**one) if shown["aggregate_id"] else rows.filter(head_id=shown["id"])
    row = named.values("head_id", "status", "retry_count", "retry_at", "since", "code", "error").first()
    return None if row is None else {**row}
