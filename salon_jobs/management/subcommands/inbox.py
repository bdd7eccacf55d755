"""``salon_jobs inbox``: the messages that consumers rejected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.terminal import Screen
from salon_jobs.inbox.queries import Status, dismiss_messages, retry_messages, shown_text
from salon_jobs.management.arguments import add_options
from salon_jobs.management.output import change_rows, write_list, write_page
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.models import InboxMessage

_COLUMNS: Final = ("message_id", "id", "consumer", "event", "code", "deliveries", "received_at", "status")
_DETAILS: Final = ("producer", "store_id", "job_id", "ended_at")
_WAITING: Final = (Status.REJECTED, Status.RETRY)


class Inbox(Subcommand):
    """Subcommand that lists messages waiting for an operator, shows one, retries or dismisses them."""

    name = "inbox"
    help = "List the messages that consume_queue rejected, show one, retry or dismiss them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action", nargs="?", choices=("list", "show", "retry", "dismiss"), default="list", help="default list"
        )
        parser.add_argument("id", nargs="*", type=int, help="IDs of messages, as listed")
        parser.add_argument("--consumer", metavar="NAME", help="all messages of this consumer")
        add_options(parser, "--limit", "--yes", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Run the action. Raises CommandError for IDs that do not exist, and without a terminal to confirm on."""
        fields = {"id__in": options["id"] or None, "consumer": options["consumer"]}
        criteria = {field: value for field, value in fields.items() if value is not None}
        messages = InboxMessage.objects.using(conf.reader_database).filter(**criteria).order_by("id")
        match options["action"]:
            case "list":
                rows, nothing = messages.filter(status__in=_WAITING), "no message is rejected"
                columns = (*_COLUMNS, "reason")
                write_list(
                    rows,
                    columns,
                    options,
                    out,
                    err,
                    nothing=nothing,
                    detail="reason",
                    below=("code", "event"),
                    only_in_json=_DETAILS,
                )
            case "show":
                if len(options["id"]) != 1:
                    raise CommandError("name one message by its ID, as listed by: salon_jobs inbox")
                row = messages.values(*_COLUMNS, "reason", *_DETAILS, "raw").first()
                if row is None:
                    raise CommandError(f"the inbox has no message {options['id'][0]}")
                _write(row, shown_text(row["raw"]), options, out)
            case action:
                if bool(options["id"]) == bool(options["consumer"]):
                    raise CommandError("name the messages by IDs, or all of one consumer's by --consumer")
                verb, states, done = (
                    (retry_messages, [Status.REJECTED], "for consume_queue to retry at its next poll")
                    if action == "retry"
                    else (dismiss_messages, _WAITING, "dismissed")
                )
                matching = messages.filter(status__in=states).values_list("id", flat=True)
                ids: list[int] = list(dict.fromkeys(options["id"]) or matching)
                verb = partial(verb, using=conf.reader_database)
                change_rows(ids, verb, options, out, err, action=action.capitalize(), noun="message", done=done)


def _write(row: Mapping[str, Any], raw: str, options: Mapping[str, Any], out: OutputWrapper) -> None:
    """Write one message, as JSON if asked for."""
    if options["json"]:
        out.write(json.dumps({**row, "raw": raw}, indent=2, default=str))
        return
    write_page(
        f"incoming message {row['id']} {row['event']}",
        row["status"],
        notes=[("reason", row["reason"], "red")],
        facts={
            "consumer": row["consumer"],
            "producer": row["producer"],
            "message ID": row["message_id"],
            "store": row["store_id"],
            "code": row["code"],
            "received": row["received_at"],
            "deliveries": row["deliveries"],
            "job": row["job_id"],
            "ended": row["ended_at"],
        },
        content={"raw": raw},
        screen=Screen.of(out, options),
        out=out,
    )
