"""Lists messages: ``salon_jobs messages list``."""

from __future__ import annotations

import json
from typing import Any, Final

from django.core.management.base import CommandParser, OutputWrapper

from salon_jobs.core.messages import MessageStatus
from salon_jobs.management.arguments import positive
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.subcommands.messages.criteria import add_filters, chosen, looked_at
from salon_jobs.management.table import shortened, table

_COLUMNS: Final = (
    "id", "status", "aggregate_type", "aggregate_id", "event", "store_id", "retry_count", "created_at", "sent_at",
    "ended_at", "last_error",
)  # fmt: skip


class List(Subcommand):
    """Lists the newest messages of those that match."""

    name = "list"
    help = "List messages, the newest first, without their payloads."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--status", choices=[status.value for status in MessageStatus], help="of this status")
        add_filters(parser)
        parser.add_argument("--limit", type=positive, default=50, metavar="N", help="so many at most (default 50)")
        parser.add_argument("--json", action="store_true", help="write a list of objects")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write a table, or JSON."""
        found, everything = chosen(options, options["status"])
        rows = list(found.values(*_COLUMNS)[: options["limit"]])
        if options["json"]:
            out.write(json.dumps(rows, indent=2, default=str))
        elif rows:
            shown = ([*{**row, "last_error": shortened(row["last_error"])}.values()] for row in rows)
            out.write(table([_COLUMNS, *shown]))
        else:
            err.write("no message matches")
        if not everything and len(rows) < options["limit"]:
            err.write(looked_at())
