"""``salon_jobs messages ACTION``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, Final
from uuid import UUID

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db.models import Q, QuerySet

from salon_jobs.brokers.broker import filter_codes
from salon_jobs.conf import settings as conf
from salon_jobs.core.records import ActionResult, MessageStatus
from salon_jobs.core.redaction import redacted
from salon_jobs.core.terminal import Screen
from salon_jobs.core.text import shown
from salon_jobs.core.units import with_noun
from salon_jobs.dashboard.relays import why_not_sent
from salon_jobs.management.arguments import add_options, os_user
from salon_jobs.management.output import (
    ask,
    change_rows,
    instant,
    printable,
    table,
    write_list,
    write_page,
    write_results,
)
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.models import BlockedAggregate, Message
from salon_jobs.outbox.control import (
    MessageCriteria,
    Replayed,
    pause_destination,
    replay_messages,
    resume_destination,
    retry_messages,
    send_skipped_messages,
    skip_messages,
    unpark,
)
from salon_jobs.outbox.queries import COUNTED, NEWEST, find_messages, gate_state

_FILTERS: Final = ("aggregate_type", "aggregate_id", "event", "store", "since")


def _message_id(text: str) -> int | UUID:
    """Parse a message's number, or the UUID that brokers and consumers know, for argparse."""
    if text.isascii() and text.isdecimal() and int(text) < 2**63:
        return int(text)
    try:
        return UUID(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a message ID: neither a number nor a UUID") from error


def _add_selection(parser: CommandParser) -> None:
    parser.add_argument("id", nargs="*", type=_message_id, help="numbers or UUIDs of messages")
    add_options(parser, *(f"--{name.replace('_', '-')}" for name in _FILTERS))


def _matching(options: dict[str, Any], status: str | None) -> tuple[QuerySet[Message], bool]:
    """Return the messages that the filters select, newest first, and whether every message was searched."""
    criteria = {name: options[name] for name in _FILTERS if name != "store"}
    return find_messages(status=status, store_id=options["store"], using=conf.reader_database, **criteria)


def _numbers(ids: Sequence[int | UUID]) -> list[int]:
    """Return the numbers of messages without duplicates. Raises CommandError for unknown UUIDs."""
    uuids = [each for each in ids if isinstance(each, UUID)]
    rows = Message.objects.using(conf.reader_database).filter(message_id__in=uuids).values_list("message_id", "id")
    by_uuid: dict[UUID, int] = dict(rows)
    if missing := [str(each) for each in uuids if each not in by_uuid]:
        raise CommandError(f"there is no message {', '.join(missing)}")
    return list(dict.fromkeys(by_uuid[each] if isinstance(each, UUID) else each for each in ids))


_COLUMNS: Final = ("id", "status", "aggregate_type", "aggregate_id", "event", "retry_count", "created_at", "last_error")
_ONLY_IN_JSON: Final = ("store_id", "sent_at", "ended_at")


class ListMessages(Subcommand):
    """Subcommand that lists the newest matching messages."""

    name = "list"
    help = "List messages, newest first, without their payloads."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--status", choices=[status.value for status in MessageStatus], help="with this status")
        add_options(parser, "--aggregate-type", "--aggregate-id", "--event", "--store", "--since", "--limit", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        messages, is_complete = _matching(options, options["status"])
        count = write_list(
            messages,
            _COLUMNS,
            options,
            out,
            err,
            nothing="no message matches",
            detail="last_error",
            below=("event", "aggregate_id"),
            only_in_json=_ONLY_IN_JSON,
            waiting=_waiting,
        )
        if not is_complete and count < options["limit"]:
            err.write(f"only the newest {NEWEST:,} IDs were searched; --status failed or skipped searches all of these")


def _waiting(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each pending message why its destination takes none; "" for others."""
    pending = [each["aggregate_type"] for each in messages if each["status"] == MessageStatus.PENDING]
    reasons = why_not_sent(pending, using=conf.reader_database) if pending else {}
    return [
        reasons.get(each["aggregate_type"], "") if each["status"] == MessageStatus.PENDING else "" for each in messages
    ]


class ShowMessage(Subcommand):
    """Subcommand that shows everything known about one message, and what it waits for."""

    name = "show"
    help = "Show a message with its payload, its last error, what blocks it, and why its destination takes none."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=_message_id, help="the number or UUID of a message")
        add_options(parser, "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write the message. Raises CommandError when it does not exist."""
        [number] = _numbers([options["id"]])
        row = Message.objects.using(conf.reader_database).filter(pk=number).values().first()
        if row is None:
            raise CommandError(f"there is no message {number}")
        message: dict[str, Any] = {**row}
        hidden = {name: redacted(message[name], conf.redact) for name in ("payload", "headers")}
        waiting, holder = _waiting([message])[0], _holder(message)
        if options["json"]:
            shown = {**message, **hidden, "waiting": waiting, "blocked_by": holder}
            out.write(json.dumps(shown, indent=2, default=str))
            return
        write_page(
            f"message {number} {message['event']}",
            message["status"],
            notes=[
                ("waiting", waiting, "yellow"),
                ("blocked", _blocking(holder, number), "yellow"),
                ("error", message["last_error"], "red"),
            ],
            facts={
                "destination": message["aggregate_type"],
                "aggregate": message["aggregate_id"],
                "store": message["store_id"],
                "message ID": message["message_id"],
                "producer": message["producer"],
                "replay of": message["replay_of"],
                "created": message["created_at"],
                "sent": message["sent_at"],
                "ended": message["ended_at"],
                "retries": message["retry_count"] or None,
                "next attempt": message["retry_at"],
            },
            content=hidden,
            screen=Screen.of(out, options),
            out=out,
        )


def _holder(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row that blocks the message's aggregate, possibly because of this message."""
    if message["status"] not in ("pending", "failed"):
        return None
    rows = BlockedAggregate.objects.using(conf.reader_database)
    aggregate = {"aggregate_type": message["aggregate_type"], "aggregate_id": message["aggregate_id"]}
    holders = rows.filter(**aggregate) if message["aggregate_id"] else rows.filter(head_id=message["id"])
    row = holders.values("head_id", "status", "retry_count", "retry_at", "since", "code", "error").first()
    return None if row is None else {**row}


def _blocking(holder: Mapping[str, Any] | None, number: int) -> str:
    """Return what blocks the message's aggregate, and since when."""
    if holder is None:
        return ""
    by = "its aggregate, by this message" if holder["head_id"] == number else f"by message {holder['head_id']}"
    return f"{by}: {holder['status']} since {instant(holder['since'])}"


class ChangeMessages(Subcommand):
    """Subcommand that changes messages by ID, or all failed ones that match the options."""

    done: ClassVar[str]
    verb: ClassVar[Callable[..., list[ActionResult[int]]]]

    def add_arguments(self, parser: CommandParser) -> None:
        _add_selection(parser)
        add_options(parser, "--yes", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Count, ask, change, report. Raises CommandError when nothing is selected, or without a terminal."""
        if bool(options["id"]) == any(options[name] is not None for name in _FILTERS):
            raise CommandError("name the messages by IDs, or the failed ones by --aggregate-type, --event, --store …")
        failed, _ = _matching(options, MessageStatus.FAILED)
        ids = _numbers(options["id"]) or sorted(failed.values_list("pk", flat=True))
        verb = partial(self.verb, using=conf.reader_database)
        change_rows(ids, verb, options, out, err, action=self.name.capitalize(), noun="message", done=self.done)


class RetryMessages(ChangeMessages):
    """Subcommand that retries failed messages."""

    name = "retry"
    help = "Send messages again: failed ones with all their attempts, waiting ones at once."
    done = "sent again"
    verb = staticmethod(retry_messages)


class SkipMessages(ChangeMessages):
    """Subcommand that skips messages for good."""

    name = "skip"
    help = "Give up messages: they are never sent, and the messages they block continue."
    done = "skipped"
    verb = staticmethod(skip_messages)


class SendSkipped(Subcommand):
    """Subcommand that sends messages by ID, or all matching ones, that a list in the settings had skipped."""

    name = "send-skipped"
    help = "Send messages that a list in the settings skipped, with their original IDs."

    def add_arguments(self, parser: CommandParser) -> None:
        _add_selection(parser)
        parser.add_argument(
            "--code",
            action="append",
            metavar="CODE",
            help=f"skipped for this reason; repeatable (default {' and '.join(filter_codes())})",
        )
        add_options(parser, "--yes", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Count, ask, send, report. Raises CommandError when nothing is selected, or without a terminal."""
        ids = self._ids(options)
        if ids and not options["yes"]:
            question = f"Send {with_noun(len(ids), 'skipped message')} ({min(ids)} to {max(ids)})?"
            ask(question, err, otherwise="nothing was changed")
        write_results(send_skipped_messages(ids, using=conf.reader_database), "to be sent", options, out)

    def _ids(self, options: dict[str, Any]) -> Sequence[int]:
        has_filters = any(options[name] is not None for name in _FILTERS)
        if bool(options["id"]) == has_filters or (options["id"] and options["code"]):
            raise CommandError(
                "name the messages by IDs, or those that a list skipped by --aggregate-type, --event, --store …"
            )
        if options["id"]:
            return _numbers(options["id"])
        reasons = Q()
        for code in options["code"] or filter_codes():
            reasons |= Q(last_error=code) | Q(last_error__startswith=f"{code} ")
        skipped, _ = _matching(options, MessageStatus.SKIPPED)
        return sorted(skipped.filter(reasons).values_list("pk", flat=True))


class ReplayMessages(Subcommand):
    """Subcommand that writes messages again under new IDs, after a preview."""

    name = "replay"
    help = "Send messages again as new ones, in the original order. Counts them first, and asks for confirmation."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", nargs="*", type=_message_id, help="numbers or UUIDs of messages")
        parser.add_argument("--from-id", type=int, metavar="N", help="from this number")
        parser.add_argument("--to-id", type=int, metavar="N", help="up to this number")
        parser.add_argument(
            "--status", action="append", choices=("published", "skipped", "failed"), help="these only; repeatable"
        )
        parser.add_argument("--by", metavar="WHO", default="", help="who sends them again, for the record")
        parser.add_argument("--reason", metavar="WHY", default="", help="why, for the record")
        add_options(parser, "--aggregate-type", "--aggregate-id", "--event", "--since", "--until")
        add_options(parser, "--dry-run", "--yes", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Preview, ask, replay, report. Raises CommandError without a terminal to confirm on; OptionInvalid."""
        names = ("aggregate_type", "aggregate_id", "event", "from_id", "to_id", "since", "until")
        given: dict[str, Any] = {name: options[name] for name in names if options[name] is not None}
        if options["status"]:
            given["statuses"] = tuple(dict.fromkeys(options["status"]))
        criteria = MessageCriteria(ids=tuple(_numbers(options["id"])), **given)
        using = conf.reader_database
        replay = partial(replay_messages, criteria, requested_by=options["by"], reason=options["reason"], using=using)
        if options["dry_run"]:
            self._report("would be sent again", replay(dry_run=True), options, out)
            return
        if not options["yes"]:
            preview = replay(dry_run=True)
            question = f"Send {with_noun(preview.messages, 'message')} again ({_range(preview)})?"
            ask(question, err, otherwise="nothing was changed", remedy="pass --yes, or --dry-run to count only")
        self._report("sent again", replay(), options, out)

    def _report(self, done: str, replayed: Replayed, options: dict[str, Any], out: OutputWrapper) -> None:
        if options["json"]:
            out.write(json.dumps({"dry_run": options["dry_run"], **asdict(replayed)}))
            return
        for each in replayed.refused:
            out.write(printable(f"{each.id}: {each.detail}"))
        out.write(f"{done}: {replayed.messages:,} ({_range(replayed)})")


def _range(replayed: Replayed) -> str:
    return f"{replayed.first} to {replayed.last}" if replayed.messages else "none"


_PARKED_COLUMNS: Final = ("aggregate_type", "aggregate_id", "status", "head_id", "retry_at", "since", "code", "error")


class ListParked(Subcommand):
    """Subcommand that lists parked aggregates, and on request those that wait for a retry."""

    name = "parked"
    help = "List parked aggregates, and the message that blocks each."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--waiting", action="store_true", help="also those that wait for their next attempt")
        add_options(parser, "--aggregate-type", "--limit", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        aggregates = BlockedAggregate.objects.using(conf.reader_database).order_by("pk")
        if not options["waiting"]:
            aggregates = aggregates.filter(status=BlockedAggregate.Status.PARKED)
        if options["aggregate_type"]:
            aggregates = aggregates.filter(aggregate_type=options["aggregate_type"])
        nothing = "no aggregate is parked"
        more = ("retry_count", "store_id")
        write_list(aggregates, _PARKED_COLUMNS, options, out, err, nothing=nothing, detail="error", only_in_json=more)


class Unpark(Subcommand):
    """Subcommand that retries the messages that block aggregates."""

    name = "unpark"
    help = "Retry the message that blocks each aggregate, at once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--aggregate-type", metavar="NAME", required=True, help="of this destination")
        parser.add_argument("--aggregate-id", metavar="ID", action="append", help="this aggregate; repeatable")
        add_options(parser, "--yes", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Ask, retry, report. Raises CommandError without a terminal to confirm on."""
        destination, ids = options["aggregate_type"], options["aggregate_id"]
        if ids is not None and "" in ids:
            raise CommandError("--aggregate-id must not be empty: messages of no aggregate are retried by their IDs")
        if not options["yes"]:
            blocked = BlockedAggregate.objects.using(conf.reader_database).filter(aggregate_type=destination)
            count = blocked.filter(aggregate_id__in=ids).count() if ids else blocked.count()
            ask(f"Retry {with_noun(count, 'aggregate')}?", err, otherwise="nothing was changed")
        chosen: dict[str, Any] = (
            {"aggregates": [(destination, each) for each in ids]} if ids else {"aggregate_type": destination}
        )
        write_results(unpark(using=conf.reader_database, **chosen), "unparked", options, out)


class PauseDestination(Subcommand):
    """Subcommand that stops sending to one destination."""

    name = "pause"
    help = "Stop sending to a destination; messages are still written, and wait. Relays follow within a second."
    done: ClassVar[str] = "paused"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("aggregate_type", help="the destination: an ARN or RN")
        add_options(parser, "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Do it and report it. Raises MessageInvalid."""
        name = options["aggregate_type"]
        self.change(name)
        out.write(json.dumps({self.done: name}) if options["json"] else printable(f"{self.done}: {name}"))

    def change(self, name: str) -> None:
        """Pause the destination in the name of the operating system's user."""
        pause_destination(name, by=os_user(), using=conf.reader_database)


class ResumeDestination(PauseDestination):
    """Subcommand that resumes sending to a paused destination."""

    name = "resume"
    help = "Resume a paused destination; waiting messages are sent in order."
    done = "resumed"

    def change(self, name: str) -> None:
        resume_destination(name, using=conf.reader_database)


class ShowGate(Subcommand):
    """Subcommand that shows the open transactions that wrote messages, and how many messages wait for them to end."""

    name = "gate"
    help = "Show the open transactions that hold back messages, since when, and how many messages wait."

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser, "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        state = gate_state(using=conf.reader_database)
        if options["json"]:
            out.write(json.dumps(asdict(state), indent=2, default=str))
        elif not state.holders:
            out.write(f"no open transaction holds back messages; they are relayed up to {state.bound}")
        else:
            rows = [
                (
                    each.pid or "prepared transaction",
                    each.role,
                    each.application,
                    each.since or "not visible",
                    each.state,
                )
                for each in state.holders
            ]
            screen = Screen.of(out, options)
            out.write(table([("pid", "role", "application", "since", "state"), *rows], screen))
            behind = f"{state.behind:,} or more" if state.behind == COUNTED else f"{state.behind:,}"
            out.write(f"messages are relayed up to {state.bound}; committed and waiting behind that: {behind}")


ACTIONS: Final[tuple[Subcommand, ...]] = (
    ListMessages(),
    ShowMessage(),
    RetryMessages(),
    SkipMessages(),
    SendSkipped(),
    ListParked(),
    Unpark(),
    ReplayMessages(),
    PauseDestination(),
    ResumeDestination(),
    ShowGate(),
)


class Messages(Subcommand):
    """Subcommand with actions that inspect and change messages."""

    name = "messages"
    help = "Show messages, retry, skip and replay them, unpark aggregates, pause destinations."

    def add_arguments(self, parser: CommandParser) -> None:
        chosen = parser.add_subparsers(dest="action", title="actions", metavar="ACTION")
        for each in ACTIONS:
            each.add_arguments(chosen.add_parser(each.name, help=each.help, description=each.help))

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Run the action. Raises CommandError when none is named."""
        named = {each.name: each for each in ACTIONS}
        if options["action"] is None:
            raise CommandError(f"Choose an action: {', '.join(named)}")
        named[options["action"]].run(options, out, err)
