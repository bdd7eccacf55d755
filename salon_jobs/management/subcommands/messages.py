"""``salon_jobs messages ACTION``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, Final
from uuid import UUID

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db.models import Q, QuerySet

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import EVENT_SKIPPED, TOPIC_DENIED, ActionResult, MessageStatus
from salon_jobs.core.redaction import redacted
from salon_jobs.management.arguments import instant, positive
from salon_jobs.management.output import ask, in_batches, printable_lines, shortened, table, tell
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.models import BlockedAggregate, Message
from salon_jobs.outbox.control import (
    BATCH,
    pause_destination,
    resume_destination,
    retry_messages,
    skip_messages,
    unpark,
)
from salon_jobs.outbox.queries import COUNTED, GateHolder, gate_state
from salon_jobs.outbox.replay import MessageCriteria, Replayed, replay_messages, send_skipped_messages
from salon_jobs.outbox.search import NEWEST, find_messages

FILTERS = ("aggregate_type", "aggregate_id", "event", "store", "since")


def message_id(text: str) -> int | UUID:
    """Parse a message's number, or the uuid that brokers and consumers know, for argparse."""
    if text.isascii() and text.isdecimal() and int(text) < 2**63:
        return int(text)
    try:
        return UUID(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no id of a message: neither a number nor a uuid") from error


def add_filters(parser: CommandParser) -> None:
    """Add the options that select messages by filter."""
    parser.add_argument("--aggregate-type", metavar="NAME", help="for this destination")
    parser.add_argument("--aggregate-id", metavar="ID", help="of this aggregate")
    parser.add_argument("--event", metavar="NAME", help="with this event")
    parser.add_argument("--store", type=UUID, metavar="ID", help="of this store")
    parser.add_argument(
        "--since", type=instant, metavar="TIME", help="written since: an age (12h, 7d) or an instant in ISO 8601"
    )


def chosen(options: dict[str, Any], status: str | None) -> tuple[QuerySet[Message], bool]:
    """Return the selected messages, newest first, and whether every message was searched."""
    wanted = {name: options[name] for name in FILTERS if name != "store"}
    return find_messages(status=status, store_id=options["store"], using=conf.reader_database, **wanted)


def numbers(ids: Sequence[int | UUID]) -> list[int]:
    """Return the numbers of messages without duplicates. Raises CommandError for unknown uuids."""
    uuids = [each for each in ids if isinstance(each, UUID)]
    rows = Message.objects.using(conf.reader_database).filter(message_id__in=uuids).values_list("message_id", "id")
    known: dict[UUID, int] = dict(rows)
    if missing := [str(each) for each in uuids if each not in known]:
        raise CommandError(f"there is no message {', '.join(missing)}")
    return list(dict.fromkeys(known[each] if isinstance(each, UUID) else each for each in ids))


def looked_at() -> str:
    """Return the note that not every message was searched."""
    return f"only the newest {NEWEST:,} ids were looked at; --status failed or skipped looks at all of these"


_COLUMNS: Final = (
    "id",
    "status",
    "aggregate_type",
    "aggregate_id",
    "event",
    "store_id",
    "retry_count",
    "created_at",
    "sent_at",
    "ended_at",
    "last_error",
)


class List(Subcommand):
    """Subcommand that lists the newest matching messages."""

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


class Show(Subcommand):
    """Subcommand that shows everything known about one message, and what blocks it."""

    name = "show"
    help = "Show a message with its payload, its last error and what holds it back."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", type=message_id, help="the number of a message, or its uuid")
        parser.add_argument("--json", action="store_true", help="write an object")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write the message. Raises CommandError when it does not exist."""
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
    """Return the row that blocks the message's aggregate, possibly its own."""
    if shown["status"] not in ("pending", "failed"):
        return None
    rows = BlockedAggregate.objects.using(conf.reader_database)
    one = {"aggregate_type": shown["aggregate_type"], "aggregate_id": shown["aggregate_id"]}
    named = rows.filter(**one) if shown["aggregate_id"] else rows.filter(head_id=shown["id"])
    row = named.values("head_id", "status", "retry_count", "retry_at", "since", "code", "error").first()
    return None if row is None else {**row}


class OnMessages(Subcommand):
    """Subcommand that changes messages by id, or all failed ones that match the options."""

    done: ClassVar[str]
    not_done: ClassVar[str]
    operate: ClassVar[Callable[..., list[ActionResult[int]]]]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", nargs="*", type=message_id, help="numbers or uuids of messages")
        add_filters(parser)
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write a list of objects, one for each message")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Count, ask, change, report. Raises CommandError when nothing is selected, or without a terminal."""
        ids = self._ids(options)
        if ids and not options["yes"]:
            ask(f"{self.name.capitalize()} {len(ids):,} messages?", err, otherwise=self.not_done, remedy="add --yes")
        results = in_batches(ids, partial(self.operate, using=conf.reader_database), batch=BATCH, err=err)
        tell(results, self.done, lambda result: result.id, as_json=options["json"], out=out)

    def _ids(self, options: dict[str, Any]) -> Sequence[int]:
        filtered = any(options[name] is not None for name in FILTERS)
        if bool(options["id"]) == filtered:
            raise CommandError("name the messages by ids, or the failed ones by --aggregate-type, --event, --store …")
        if options["id"]:
            return numbers(options["id"])
        failed, _ = chosen(options, MessageStatus.FAILED)
        return sorted(failed.values_list("pk", flat=True))


class RetryMessages(OnMessages):
    """Subcommand that retries failed messages."""

    name = "retry"
    help = "Have messages sent again: failed ones with all their tries, waiting ones at once."
    done = "sent again"
    not_done = "nothing is sent again"
    operate = staticmethod(retry_messages)


class SkipMessages(OnMessages):
    """Subcommand that skips messages for good."""

    name = "skip"
    help = "Give messages up: they are never sent, and what they held back goes on."
    done = "skipped"
    not_done = "nothing was skipped"
    operate = staticmethod(skip_messages)


class ReplayMessages(Subcommand):
    """Subcommand that writes messages again under new ids, after a preview."""

    name = "replay"
    help = "Send messages again on purpose, as new ones in the order of the old; says how many first and asks."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", nargs="*", type=message_id, help="numbers or uuids of messages")
        parser.add_argument("--aggregate-type", metavar="NAME", help="for this destination, in a range")
        parser.add_argument("--aggregate-id", metavar="ID", help="of this aggregate")
        parser.add_argument("--event", metavar="NAME", help="with this event")
        parser.add_argument("--from-id", type=int, metavar="N", help="from this number")
        parser.add_argument("--to-id", type=int, metavar="N", help="up to this number")
        parser.add_argument("--since", type=instant, metavar="TIME", help="written since: 12h, 7d, or ISO 8601")
        parser.add_argument("--until", type=instant, metavar="TIME", help="written before")
        parser.add_argument(
            "--status", action="append", choices=("published", "skipped", "failed"), help="these only; repeatable"
        )
        parser.add_argument("--by", metavar="WHO", default="", help="who sends them again, for the record")
        parser.add_argument("--reason", metavar="WHY", default="", help="why, for the record")
        parser.add_argument("--dry-run", action="store_true", help="count them and send nothing")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write an object")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Preview, ask, replay, report. Raises CommandError without a terminal to confirm on; OptionInvalid."""
        criteria = _criteria(options)
        using = conf.reader_database
        if options["dry_run"] or not options["yes"]:
            found = replay_messages(criteria, dry_run=True, using=using)
            if options["dry_run"]:
                _tell("would be sent again", found, options, out)
                return
            ask(
                f"Send {found.messages:,} messages again ({_ends(found)})?",
                err,
                otherwise="nothing was sent again",
                remedy="add --yes, or --dry-run to count only",
            )
        done = replay_messages(criteria, requested_by=options["by"], reason=options["reason"], using=using)
        _tell("sent again", done, options, out)


def _criteria(options: dict[str, Any]) -> MessageCriteria:
    names = ("aggregate_type", "aggregate_id", "event", "from_id", "to_id", "since", "until")
    given: dict[str, Any] = {name: options[name] for name in names if options[name] is not None}
    if options["status"]:
        given["statuses"] = tuple(dict.fromkeys(options["status"]))
    return MessageCriteria(ids=tuple(numbers(options["id"])), **given)


def _ends(found: Replayed) -> str:
    return f"{found.first} to {found.last}" if found.messages else "none"


def _tell(verb: str, found: Replayed, options: dict[str, Any], out: OutputWrapper) -> None:
    if options["json"]:
        out.write(json.dumps({"dry_run": options["dry_run"], **asdict(found)}))
        return
    for refused in found.refused:
        out.write(f"{refused.id}: {refused.detail}")
    out.write(f"{verb}: {found.messages:,} ({_ends(found)})")


class SendSkipped(Subcommand):
    """Subcommand that sends messages by id, or all matching ones, that a list in the settings had skipped."""

    name = "send-skipped"
    help = "Send messages after all that a list of the settings skipped, under their own ids."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", nargs="*", type=message_id, help="numbers or uuids of messages, skipped by whomever")
        add_filters(parser)
        parser.add_argument(
            "--code",
            action="append",
            metavar="CODE",
            help=f"skipped for this reason; repeatable (default {TOPIC_DENIED} and {EVENT_SKIPPED})",
        )
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write a list of objects, one for each message")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Count, ask, send, report. Raises CommandError when nothing is selected, or without a terminal."""
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


_PARKED_COLUMNS: Final = (
    "aggregate_type",
    "aggregate_id",
    "status",
    "head_id",
    "retry_count",
    "retry_at",
    "since",
    "code",
    "store_id",
)


class Parked(Subcommand):
    """Subcommand that lists parked aggregates, and on request those that wait for a retry."""

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
        rows = list(found.values(*_PARKED_COLUMNS, "error")[: options["limit"]])
        if options["json"]:
            out.write(json.dumps(rows, indent=2, default=str))
        elif rows:
            out.write(table([_PARKED_COLUMNS, *(tuple(row[name] for name in _PARKED_COLUMNS) for row in rows)]))
        else:
            err.write("nothing is parked")


class Unpark(Subcommand):
    """Subcommand that retries the messages that block aggregates."""

    name = "unpark"
    help = "Try the message again that holds each blocked aggregate back, at once."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--aggregate-type", metavar="NAME", required=True, help="of this destination")
        parser.add_argument("--aggregate-id", metavar="ID", action="append", help="this aggregate; repeatable")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write a list of objects, one for each aggregate")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Ask, retry, report. Raises CommandError without a terminal to confirm on."""
        kind, ids = options["aggregate_type"], options["aggregate_id"]
        if ids is not None and "" in ids:
            raise CommandError("--aggregate-id must not be empty: messages of no aggregate are retried by their ids")
        if not options["yes"]:
            blocked = BlockedAggregate.objects.using(conf.reader_database).filter(aggregate_type=kind)
            count = blocked.filter(aggregate_id__in=ids).count() if ids else blocked.count()
            ask(f"Try {count:,} aggregates again?", err, otherwise="nothing was unparked", remedy="add --yes")
        named: dict[str, Any] = {"aggregates": [(kind, one) for one in ids]} if ids else {"aggregate_type": kind}
        results = unpark(using=conf.reader_database, **named)
        tell(results, "unparked", lambda result: result.id[1], as_json=options["json"], out=out)


class PauseDestination(Subcommand):
    """Subcommand that stops sending to one destination."""

    name = "pause"
    help = "Send nothing to a destination; messages are still written, and wait. Relays follow within a second."
    _done = "paused"
    _do = staticmethod(pause_destination)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("aggregate_type", help="the destination: an ARN or RN")
        parser.add_argument("--json", action="store_true", help="write what was done as JSON")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Do it and report it. Raises MessageInvalid."""
        name = options["aggregate_type"]
        self._do(name, using=conf.reader_database)
        out.write(json.dumps({self._done: name}) if options["json"] else f"{self._done}: {name}")


class ResumeDestination(PauseDestination):
    """Subcommand that resumes sending to a paused destination."""

    name = "resume"
    help = "Send to a paused destination again what waits, in order."
    _done = "resumed"
    _do = staticmethod(resume_destination)


class Gate(Subcommand):
    """Subcommand that shows the open transactions that wrote messages, and how many messages wait for them to end."""

    name = "gate"
    help = "Show the open transactions behind which messages wait, since when, and how many."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--json", action="store_true", help="write an object")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write a table, or JSON."""
        state = gate_state(using=conf.reader_database)
        if options["json"]:
            out.write(json.dumps(asdict(state), indent=2, default=str))
            return
        if not state.holders:
            out.write(f"nobody holds the gate; messages are relayed up to {state.bound}")
            return
        out.write(table([("pid", "role", "application", "since", "state"), *map(_cells, state.holders)]))
        behind = f"{state.behind:,} or more" if state.behind == COUNTED else f"{state.behind:,}"
        out.write(f"messages are relayed up to {state.bound}; committed and waiting behind that: {behind}")


def _cells(holder: GateHolder) -> tuple[object, ...]:
    pid = holder.pid or "prepared transaction"
    return (pid, holder.role, holder.application, holder.since or "not visible", holder.state)


ACTIONS: Final[tuple[Subcommand, ...]] = (
    List(),
    Show(),
    RetryMessages(),
    SkipMessages(),
    SendSkipped(),
    Parked(),
    Unpark(),
    ReplayMessages(),
    PauseDestination(),
    ResumeDestination(),
    Gate(),
)


class Messages(Subcommand):
    """Subcommand with subcommands of its own, which inspect and change messages."""

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
