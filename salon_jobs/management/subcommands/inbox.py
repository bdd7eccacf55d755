"""Show the messages that consumers rejected, and retry or dismiss them: ``salon_jobs inbox``."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.inbox.queries import Status, dismiss_messages, retry_messages, shown_text
from salon_jobs.management.arguments import positive
from salon_jobs.management.output import ask, in_batches, printable_lines, table, tell
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.models import InboxMessage

_HEAD: Final = ("message", "id", "consumer", "event", "code", "deliveries", "received", "status")
_WAITING: Final = (Status.REJECTED, Status.RETRY)
_BATCH: Final = 1000


class Inbox(Subcommand):
    """Subcommand that lists messages waiting for an operator, shows one, retries or dismisses them."""

    name = "inbox"
    help = "Show the messages that consume_queue rejected; retry or dismiss them. Without more: list them."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "action", nargs="?", choices=("list", "show", "retry", "dismiss"), default="list", help="default list"
        )
        parser.add_argument("id", nargs="*", type=int, help="ids of messages, as listed")
        parser.add_argument("--consumer", metavar="NAME", help="all of this consumer's")
        parser.add_argument("--limit", type=positive, default=50, metavar="N", help="list so many at most (default 50)")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write JSON")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Run the action. Raises CommandError for ids that do not exist, and without a terminal to confirm on."""
        match options["action"]:
            case "list":
                self._list(options, out, err)
            case "show":
                self._show(options, out)
            case action:
                self._decide(action, options, out, err)

    def _list(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        waiting = _chosen(options).filter(status__in=_WAITING).order_by("id").defer("raw")[: options["limit"] + 1]
        found = list(waiting)
        rows = found[: options["limit"]]
        if options["json"]:
            out.write(json.dumps([_described(message) for message in rows], indent=2))
        elif rows:
            out.write(table([_HEAD, *map(_cells, rows)]))
        else:
            err.write("nothing is rejected")
        if len(found) > len(rows):
            err.write(f"the first {len(rows):,}; there are more: --limit")

    def _show(self, options: dict[str, Any], out: OutputWrapper) -> None:
        if len(options["id"]) != 1:
            raise CommandError("name one message by its id, as listed by: salon_jobs inbox")
        message: Any = InboxMessage.objects.using(conf.reader_database).filter(id=options["id"][0]).first()
        if message is None:
            raise CommandError(f"the inbox has no message {options['id'][0]}")
        described = {**_described(message), "raw": shown_text(message.raw)}
        if options["json"]:
            out.write(json.dumps(described, indent=2))
        else:
            out.write(printable_lines("\n".join(f"{name}: {value}" for name, value in described.items())))

    def _decide(self, action: str, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        if bool(options["id"]) == bool(options["consumer"]):
            raise CommandError("name the messages by ids, or all of one consumer's by --consumer")
        state = (Status.REJECTED,) if action == "retry" else _WAITING
        waiting = _chosen(options).filter(status__in=state).order_by("id").values_list("id", flat=True)
        ids: list[int] = list(dict.fromkeys(options["id"]) or waiting)
        if ids and not options["yes"]:
            question = f"{action.capitalize()} {len(ids):,} messages?"
            ask(question, err, otherwise="nothing was changed", remedy="add --yes")
        change = partial(retry_messages if action == "retry" else dismiss_messages, using=conf.reader_database)
        results = in_batches(ids, change, batch=_BATCH, err=err)
        done = "to be tried again by consume_queue at its next poll" if action == "retry" else "dismissed"
        tell(results, done, lambda result: result.id, as_json=options["json"], out=out)


def _chosen(options: dict[str, Any]) -> Any:
    """Return the messages that the options select, or all."""
    named = {"id__in": options["id"] or None, "consumer": options["consumer"]}
    messages = InboxMessage.objects.using(conf.reader_database)
    return messages.filter(**{field: value for field, value in named.items() if value is not None})


def _described(message: Any) -> dict[str, Any]:
    return {
        "id": message.pk,
        "message_id": message.message_id,
        "consumer": message.consumer,
        "event": message.event,
        "producer": message.producer,
        "store_id": str(message.store_id) if message.store_id else None,
        "status": message.status,
        "code": message.code,
        "reason": message.reason,
        "job_id": message.job_id,
        "deliveries": message.deliveries,
        "received_at": message.received_at.isoformat(),
        "ended_at": message.ended_at.isoformat() if message.ended_at else None,
    }


def _cells(message: Any) -> tuple[object, ...]:
    return (
        message.message_id,
        message.pk,
        message.consumer,
        message.event,
        message.code,
        f"{message.deliveries:,}",
        message.received_at.isoformat(" ", "seconds"),
        message.status,
    )
