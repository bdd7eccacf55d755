"""Lists and tries again what is blocked: ``salon_jobs messages parked`` and ``salon_jobs messages unpark``."""

from __future__ import annotations

import json
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.management.arguments import positive
from salon_jobs.management.asking import ask
from salon_jobs.management.operating import tell
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.table import table
from salon_jobs.models import BlockedAggregate
from salon_jobs.outbox.operate import unpark

_COLUMNS: Final = (
    "aggregate_type", "aggregate_id", "status", "head_id", "retry_count", "retry_at", "since", "code", "store_id",
)  # fmt: skip


class Parked(Subcommand):
    """Lists parked aggregates, and on request those that wait for a retry."""

    name = "parked"
    help = "List parked aggregates, and which message holds each back."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--aggregate-type", metavar="NAME", help="for this destination")
        parser.add_argument("--waiting", action="store_true", help="those that wait for their next try, too")
        parser.add_argument("--limit", type=positive, default=50, metavar="N", help="so many at most (default 50)")
        parser.add_argument("--json", action="store_true", help="write a list of objects, with the errors")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write a table, or JSON."""
        found = BlockedAggregate.objects.using(conf.reader_database).order_by("pk")
        if not options["waiting"]:
            found = found.filter(status=BlockedAggregate.Status.PARKED)
        if options["aggregate_type"]:
            found = found.filter(aggregate_type=options["aggregate_type"])
        rows = list(found.values(*_COLUMNS, "error")[: options["limit"]])
        if options["json"]:
            out.write(json.dumps(rows, indent=2, default=str))
        elif rows:
            out.write(table([_COLUMNS, *(tuple(row[name] for name in _COLUMNS) for row in rows)]))
        else:
            err.write("nothing is parked")


class Unpark(Subcommand):
    """Tries the messages again that hold aggregates back."""

    name = "unpark"
    help = "Try the message again that holds each blocked aggregate back, at once."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--aggregate-type", metavar="NAME", required=True, help="of this destination")
        parser.add_argument("--aggregate-id", metavar="ID", action="append", help="this aggregate; repeatable")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write a list of objects, one for each aggregate")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Ask, do it, tell. Raises CommandError when nobody can be asked."""
        kind, ids = options["aggregate_type"], options["aggregate_id"]
        if ids is not None and "" in ids:
            raise CommandError("--aggregate-id must not be empty: messages of no aggregate are retried by their ids")
        if not options["yes"]:
            blocked = BlockedAggregate.objects.using(conf.reader_database).filter(aggregate_type=kind)
            count = blocked.filter(aggregate_id__in=ids).count() if ids else blocked.count()
            ask(f"Try {count:,} aggregates again?", err, otherwise="nothing was unparked", remedy="add --yes")
        named: dict[str, Any] = {"aggregates": [(kind, one) for one in ids]} if ids else {"aggregate_type": kind}
        results = unpark(using=conf.reader_database, **named)
        tell(results, "unparked", lambda result: result.aggregate_id, as_json=options["json"], out=out)
