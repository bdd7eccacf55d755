"""``salon_jobs inbox``: the messages that consumers rejected."""

from __future__ import annotations

from typing import Final

from django.core.management.base import CommandError, CommandParser

from salon_jobs.inbox.queries import Status, shown_text
from salon_jobs.management.arguments import add_options, row_id
from salon_jobs.management.output import Console
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.models import InboxMessage
from salon_jobs.verbs import verbs_of

_COLUMNS: Final = ("message_id", "id", "consumer", "event", "code", "deliveries", "received_at", "status", "reason")
_DETAILS: Final = ("producer", "store_id", "job_id", "ended_at")
_VERBS: Final = verbs_of(InboxMessage)


class Inbox(Subcommand):
    """Subcommand that lists messages waiting for an operator, shows one, retries or dismisses them."""

    name = "inbox"
    help = "List the messages that consume_queue rejected, show one, retry or dismiss them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", nargs="?", choices=("list", "show", *_VERBS), default="list", help="default list")
        parser.add_argument("id", nargs="*", type=row_id, help="IDs of messages, as listed")
        parser.add_argument("--consumer", metavar="NAME", help="all messages of this consumer")
        add_options(parser, "--limit", "--yes", "--json")

    def run(self, console: Console) -> None:
        """Run the action. Raises CommandError for IDs that do not exist, and without a terminal to confirm on."""
        ids: list[int] = list(dict.fromkeys(console["id"]))
        messages = InboxMessage.objects.using(console.using).filter(**console.given("consumer")).order_by("id")
        messages = messages.filter(id__in=ids) if ids else messages
        match console["action"]:
            case "list":
                console.rows(
                    messages.filter(status__in=(Status.REJECTED, Status.RETRY)),
                    _COLUMNS,
                    nothing="no message is rejected",
                    detail="reason",
                    below=("code", "event"),
                    only_in_json=_DETAILS,
                )
            case "show":
                if len(ids) != 1:
                    raise CommandError("name one message by its ID, as listed by: salon_jobs inbox")
                row = messages.values(*_COLUMNS, *_DETAILS, "raw").first()
                if row is None:
                    raise CommandError(f"the inbox has no message {ids[0]}")
                raw = shown_text(row["raw"])
                console.page(
                    {**row, "raw": raw},
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
                )
            case action:
                if bool(ids) == bool(console["consumer"]):
                    raise CommandError("name the messages by IDs, or all of one consumer's by --consumer")
                verb = _VERBS[action]
                matching = messages.filter(status__in=verb.matching).values_list("id", flat=True)
                console.change(verb, ids or list(matching))
