"""``salon_jobs messages ACTION``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q, QuerySet

from salon_jobs.brokers.broker import filter_codes
from salon_jobs.conf import settings as conf
from salon_jobs.core.records import MessageStatus
from salon_jobs.core.redaction import redacted
from salon_jobs.core.text import short_repr
from salon_jobs.core.units import with_noun
from salon_jobs.dashboard.relays import message_page, why_not_sent
from salon_jobs.management.arguments import add_options, os_user, row_id
from salon_jobs.management.output import Console, printable
from salon_jobs.management.subcommands import Subcommand, VerbSubcommand, add_group
from salon_jobs.models import BlockedAggregate, DestinationState, Message
from salon_jobs.outbox.control import MessageCriteria, Replayed, unpark
from salon_jobs.outbox.queries import COUNTED, NEWEST, find_messages, gate_state
from salon_jobs.verbs import verbs_of

_FILTERS: Final = ("aggregate_type", "aggregate_id", "event", "store", "since")


def _message_id(text: str) -> int | UUID:
    """Parse a message's number, or the UUID that brokers and consumers know, for argparse."""
    if text.isascii() and text.isdecimal() and int(text) < 2**63:
        return int(text)
    try:
        return UUID(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{short_repr(text)} is not a message ID: neither a number nor a UUID"
        ) from error


def _matching(console: Console, status: str | None) -> tuple[QuerySet[Message], bool]:
    """Return the messages that the filters select, newest first, and whether every message was searched."""
    criteria = console.given("aggregate_type", "aggregate_id", "event", "since", store_id="store")
    return find_messages(status=status, using=console.using, **criteria)


def _numbers(ids: Sequence[int | UUID], using: str) -> list[int]:
    """Return the numbers of messages without duplicates. Raises CommandError for unknown UUIDs."""
    uuids = [each for each in ids if isinstance(each, UUID)]
    rows = Message.objects.using(using).filter(message_id__in=uuids).values_list("message_id", "id")
    by_uuid: dict[UUID, int] = dict(rows)
    if missing := [str(each) for each in uuids if each not in by_uuid]:
        raise CommandError(f"there is no message {', '.join(missing)}")
    return list(dict.fromkeys(by_uuid[each] if isinstance(each, UUID) else each for each in ids))


def _waiting(messages: Sequence[Mapping[str, Any]], using: str) -> list[str]:
    """Return for each pending message why its destination takes none; "" for others."""
    destinations = [each["aggregate_type"] if each["status"] == MessageStatus.PENDING else "" for each in messages]
    reasons = why_not_sent(filter(None, destinations), using=using) if any(destinations) else {}
    return [reasons.get(name, "") for name in destinations]


class ListMessages(Subcommand):
    """Subcommand that lists the newest matching messages."""

    name = "list"
    help = "List messages, newest first, without their payloads."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--status", choices=[status.value for status in MessageStatus], help="with this status")
        add_options(parser, "--aggregate-type", "--aggregate-id", "--event", "--store", "--since", "--limit", "--json")

    def run(self, console: Console) -> None:
        messages, is_complete = _matching(console, console["status"])
        count = console.rows(
            messages,
            ("id", "status", "aggregate_type", "event", "aggregate_id", "retry_count", "created_at", "last_error"),
            nothing="no message matches",
            detail="last_error",
            below=("event", "aggregate_id"),
            only_in_json=("store_id", "sent_at", "ended_at"),
            waiting=partial(_waiting, using=console.using),
        )
        if not is_complete and count < console["limit"]:
            console.note(
                f"only the newest {NEWEST:,} IDs were searched; --status failed or skipped searches all of these"
            )


_HOLDER: Final = ("head_id", "status", "retry_count", "retry_at", "since", "code", "error")


class ShowMessage(Subcommand):
    """Subcommand that shows everything known about one message, and why it waits."""

    name = "show"
    help = "Show a message with its payload, its last error, what blocks it, and why its destination takes none."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=_message_id, help="the number or UUID of a message")
        add_options(parser, "--json")

    def run(self, console: Console) -> None:
        """Write the message. Raises CommandError when it does not exist."""
        using = console.using
        [number] = _numbers([console["id"]], using)
        message = Message.objects.using(using).filter(pk=number).first()
        if message is None:
            raise CommandError(f"there is no message {number}")
        page, columns = message_page(message, using=using), [field.attname for field in Message._meta.concrete_fields]
        row: dict[str, Any] = {name: getattr(message, name) for name in columns}
        hidden = {name: redacted(row[name], conf.redact) for name in ("payload", "headers")}
        blocked_by = page.holder and {name: getattr(page.holder, name) for name in _HOLDER}
        console.page(
            {**row, **hidden, "waiting": page.waiting, "blocked_by": blocked_by},
            f"message {number} {message.event}",
            message.status,
            notes=[("delivery", page.delivery, "yellow"), ("error", message.last_error, "red")],
            facts={
                "destination": row["aggregate_type"],
                "aggregate": row["aggregate_id"],
                "store": row["store_id"],
                "message ID": row["message_id"],
                "producer": row["producer"],
                "replay of": row["replay_of"],
                "created": row["created_at"],
                "sent": row["sent_at"],
                "ended": row["ended_at"],
                "failed attempts": row["retry_count"] or None,
                "next attempt": row["retry_at"],
            },
            content=hidden,
        )


class ChangeMessages(VerbSubcommand):
    """Subcommand that changes messages by ID, or all of some statuses that match the options."""

    which = "the failed ones"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", nargs="*", type=_message_id, help="numbers or UUIDs of messages")
        add_options(parser, *(f"--{name.replace('_', '-')}" for name in _FILTERS), "--yes", "--json")

    def run(self, console: Console) -> None:
        """Count, ask, change, report. Raises CommandError when nothing is selected, or without a terminal."""
        if bool(console["id"]) == bool(console.given(*_FILTERS)) or (console["id"] and console.options.get("code")):
            raise CommandError(f"name the messages by IDs, or {self.which} by --aggregate-type, --event, --store …")
        self.change(console, _numbers(console["id"], console.using) or sorted(self.matching(console)))

    def matching(self, console: Console) -> QuerySet[Message, int]:
        """Return the messages that the filters select."""
        [status] = self.verb.matching
        return _matching(console, status)[0].values_list("pk", flat=True)

    def change(self, console: Console, ids: Sequence[int]) -> None:
        """Ask, change and report."""
        console.change(self.verb, ids)


class SendSkipped(ChangeMessages):
    """Subcommand that sends messages by ID, or all matching ones, that a list in the settings had skipped."""

    which = "those that a list skipped"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--code",
            action="append",
            metavar="CODE",
            help=f"skipped for this reason; repeatable (default {' and '.join(filter_codes())})",
        )

    def matching(self, console: Console) -> QuerySet[Message, int]:
        reasons = Q()
        for code in console["code"] or filter_codes():
            reasons |= Q(last_error=code) | Q(last_error__startswith=f"{code} ")
        return super().matching(console).filter(reasons)

    def change(self, console: Console, ids: Sequence[int]) -> None:
        """Use one transaction; batches would split aggregates."""
        if ids:
            console.confirm(f"Send {with_noun(len(ids), 'skipped message')} ({min(ids)} to {max(ids)})?")
        console.changed(self.verb.apply(ids, by=os_user(), using=console.using), self.verb.done)


class ReplayMessages(VerbSubcommand):
    """Subcommand that writes messages again under new IDs, after a preview."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", nargs="*", type=_message_id, help="numbers or UUIDs of messages")
        parser.add_argument("--from-id", type=row_id, metavar="N", help="from this number")
        parser.add_argument("--to-id", type=row_id, metavar="N", help="up to this number")
        parser.add_argument(
            "--status", action="append", choices=("published", "skipped", "failed"), help="these only; repeatable"
        )
        parser.add_argument("--by", metavar="WHO", default="", help="who sends them again, for the record")
        parser.add_argument("--reason", metavar="WHY", default="", help="why, for the record")
        add_options(parser, "--aggregate-type", "--aggregate-id", "--event", "--since", "--until")
        add_options(parser, "--dry-run", "--yes", "--json")

    def run(self, console: Console) -> None:
        """Preview, ask, replay, report. Raises CommandError without a terminal to confirm on; OptionInvalid."""
        given = console.given("aggregate_type", "aggregate_id", "event", "from_id", "to_id", "since", "until")
        if console["status"]:
            given["statuses"] = tuple(dict.fromkeys(console["status"]))
        criteria = MessageCriteria(ids=tuple(_numbers(console["id"], console.using)), **given)
        record = {"requested_by": console["by"], "reason": console["reason"]}
        replay = partial(self.verb.call, criteria.ids, criteria, **record, using=console.using)
        is_dry = console["dry_run"]
        if not is_dry and not console["yes"]:
            preview: Replayed = replay(dry_run=True)
            question = f"Send {with_noun(preview.messages, 'message')} again ({_range(preview)})?"
            console.confirm(question, remedy="pass --yes, or --dry-run to count only")
        replayed: Replayed = replay(dry_run=is_dry)
        for each in () if console["json"] else replayed.refused:
            console.write(printable(f"{each.id}: {each.detail}"))
        done = f"would be {self.verb.done}" if is_dry else self.verb.done
        console.result({"dry_run": is_dry, **asdict(replayed)}, f"{done}: {replayed.messages:,} ({_range(replayed)})")


def _range(replayed: Replayed) -> str:
    return f"{replayed.first} to {replayed.last}" if replayed.messages else "none"


class ListParked(Subcommand):
    """Subcommand that lists parked aggregates, and on request those that wait for a retry."""

    name = "parked"
    help = "List parked aggregates, and the message that blocks each."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--waiting", action="store_true", help="also those that wait for their next attempt")
        add_options(parser, "--aggregate-type", "--limit", "--json")

    def run(self, console: Console) -> None:
        aggregates = BlockedAggregate.objects.using(console.using).order_by("pk")
        if not console["waiting"]:
            aggregates = aggregates.filter(status=BlockedAggregate.Status.PARKED)
        if console["aggregate_type"]:
            aggregates = aggregates.filter(aggregate_type=console["aggregate_type"])
        console.rows(
            aggregates,
            ("aggregate_type", "aggregate_id", "status", "head_id", "retry_at", "since", "code", "error"),
            nothing="no aggregate is parked",
            detail="error",
            only_in_json=("retry_count", "store_id"),
        )


class Unpark(VerbSubcommand):
    """Subcommand that retries the messages that block aggregates."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--aggregate-type", metavar="NAME", required=True, help="of this destination")
        parser.add_argument("--aggregate-id", metavar="ID", action="append", help="this aggregate; repeatable")
        add_options(parser, "--yes", "--json")

    def run(self, console: Console) -> None:
        """Ask, retry, report. Raises CommandError without a terminal to confirm on."""
        destination, ids = console["aggregate_type"], console["aggregate_id"]
        if ids is not None and "" in ids:
            raise CommandError("--aggregate-id must not be empty: messages of no aggregate are retried by their IDs")
        blocked = BlockedAggregate.objects.using(console.using).filter(aggregate_type=destination)
        chosen: dict[str, Any] = {"aggregate_type": destination}
        if ids:
            blocked, chosen = blocked.filter(aggregate_id__in=ids), {"aggregates": [(destination, id_) for id_ in ids]}
        console.confirm(f"Retry {with_noun(blocked.count(), 'aggregate')}?")
        by_aggregate, heads = replace(self.verb, change=unpark), list(blocked.values_list("head_id", flat=True))
        console.changed(by_aggregate.call(heads, using=console.using, **chosen), self.verb.done)


class PauseDestination(VerbSubcommand):
    """Subcommand that stops or resumes sending to one destination."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("aggregate_type", help="the destination: an ARN or RN")
        add_options(parser, "--json")

    def run(self, console: Console) -> None:
        """Pause or resume, and report it. Raises MessageInvalid."""
        console.change_named(self.verb, console["aggregate_type"])


class ShowGate(Subcommand):
    """Subcommand that shows the open transactions that wrote messages, and how many messages wait for them to end."""

    name = "gate"
    help = "Show the open transactions that hold back messages, since when, and how many messages wait."

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser, "--json")

    def run(self, console: Console) -> None:
        state = gate_state(using=console.using)
        if console["json"] or not state.holders:
            console.result(
                asdict(state), f"no open transaction holds back messages; they are relayed up to {state.bound}"
            )
            return
        rows: list[tuple[object, ...]] = [("pid", "role", "application", "since", "state")]
        for each in state.holders:
            pid, since = each.pid or "prepared transaction", each.since or "not visible"
            rows.append((pid, each.role, each.application, since, each.state))
        console.listing([], rows, "")
        behind = f"{state.behind:,} or more" if state.behind == COUNTED else f"{state.behind:,}"
        console.write(f"messages are relayed up to {state.bound}; committed and waiting behind that: {behind}")


_VERBS: Final = verbs_of(Message)
ACTIONS: Final[tuple[Subcommand, ...]] = (
    ListMessages(),
    ShowMessage(),
    ChangeMessages(_VERBS["retry"]),
    ChangeMessages(_VERBS["skip"]),
    SendSkipped(_VERBS["send-skipped"]),
    ListParked(),
    *map(Unpark, verbs_of(BlockedAggregate).values()),
    ReplayMessages(_VERBS["replay"]),
    *map(PauseDestination, verbs_of(DestinationState).values()),
    ShowGate(),
)


class Messages(Subcommand):
    """Subcommand with actions that inspect and change messages."""

    name = "messages"
    help = "Show messages, retry, skip and replay them, unpark aggregates, pause destinations."

    def add_arguments(self, parser: CommandParser) -> None:
        add_group(parser, ACTIONS, "action", "ACTION")

    def run(self, console: Console) -> None:
        """Run the action. Raises CommandError when none is named."""
        named = {each.name: each for each in ACTIONS}
        if console["action"] is None:
            raise CommandError(f"Choose an action: {', '.join(named)}")
        named[console["action"]].run(console)
