"""Queries of the relay, and the search for messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.models import BooleanField, Exists, ExpressionWrapper, F, Max, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce, Now

from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure
from salon_jobs.conf import settings as conf
from salon_jobs.core.error_report import shown_message
from salon_jobs.core.records import PARTITIONS, MessageStatus, StoreId
from salon_jobs.db import statements
from salon_jobs.db.statements import array, run_raw
from salon_jobs.models import BlockedAggregate, DestinationState, Message, Process, RelayPartition
from salon_jobs.models.fields import created

LONGEST_ERROR: Final = 4000
LONGEST_CODE: Final = 64
# Messages behind the gate are counted up to this number, blocked aggregates up to the next.
COUNTED: Final = 100_000
_BLOCKED_COUNTED: Final = 10_000
# How many of the newest IDs are searched when no index serves a filter.
NEWEST: Final = 100_000
# Statuses whose messages an index finds.
RARE: Final = (MessageStatus.FAILED, MessageStatus.SKIPPED)


class Gate(NamedTuple):
    """Limit up to which messages may be relayed now (``bound``), and the backends whose transactions keep it there.

    ``server`` is when the answering server was started, in seconds, which distinguishes it from others.
    """

    allocated: int
    bound: int
    holders: tuple[int, ...]
    server: float


class PageRequest(NamedTuple):
    """Request for up to ``take`` messages of one partition of one destination, after an ID."""

    aggregate_type: str
    partition: int
    after: int
    take: int


class Blocked(NamedTuple):
    """Row that blocks an aggregate; ``due``: its head should be retried now."""

    aggregate_type: str
    aggregate_id: str
    partition: int
    head_id: int
    due: bool


class PartitionState(NamedTuple):
    partition: int
    owner: int | None
    epoch: int
    beat: int


def gate(*, using: str) -> Gate:
    """Read the gate. Read messages up to its bound afterwards, in a separate statement."""
    [(allocated, bound, holders, server)] = run_raw("gate", {}, using=using)
    return Gate(allocated, bound, tuple(holders), server)


def fetch(
    requests: Sequence[PageRequest], bound: int, *, without: Iterable[str] = (), using: str
) -> list[OutgoingMessage]:
    """Return the next messages, in the order requested and by ID, without these aggregates (all of one destination)."""
    types, partitions, afters, takes = map(list, zip(*requests, strict=True))
    ranges = {"types": types, "partitions": partitions, "afters": afters, "takes": takes}
    return _messages("fetch_messages", {**ranges, "bound": bound, "without": list(without)}, using=using)


def fetch_heads(ids: Sequence[int], *, using: str) -> dict[int, OutgoingMessage]:
    """Return, by each pending message's ID, the first pending message of its aggregate, or itself if it has none."""
    rows = run_raw("fetch_heads", {"ids": list(ids)}, many=True, using=using) if ids else []
    return {row[0]: OutgoingMessage._make(row[1:]) for row in rows}


def fetch_aggregate(
    destination: str, aggregate_id: str, *, after: int, upto: int, take: int, using: str
) -> list[OutgoingMessage]:
    """Return the messages of one aggregate that ``fetch`` left out while it was blocked."""
    aggregate = {"aggregate_type": destination, "aggregate_id": aggregate_id}
    return _messages("fetch_aggregate", {**aggregate, "after": after, "upto": upto, "take": take}, using=using)


def fetch_passed_over(
    destination: str, partition: int, *, upto: int, in_memory: Iterable[int], take: int, using: str
) -> list[OutgoingMessage]:
    """Return pending messages up to an ID that are neither in memory nor blocked."""
    partition_of = {"aggregate_type": destination, "partition": partition}
    parameters = {**partition_of, "upto": upto, "in_memory": list(in_memory), "take": take}
    return _messages("fetch_passed_over", parameters, using=using)


def still_pending(ids: Sequence[int], *, using: str) -> set[int]:
    """Return which of these messages are pending."""
    return {row[0] for row in run_raw("still_pending", {"ids": array(ids)}, using=using)}


def message_destinations(*, using: str) -> list[str]:
    """Return the destinations of all messages."""
    return [row[0] for row in run_raw("message_destinations", {}, using=using)]


def mark_published(messages: Sequence[OutgoingMessage], *, using: str) -> None:
    """Mark messages as published, and unblock the aggregates they blocked."""
    run_raw("mark_published", identities(messages), using=using)


def mark_skipped(skipped: Sequence[tuple[OutgoingMessage, str]], *, using: str) -> None:
    """Mark messages as skipped, with the reason of each, and unblock the aggregates they blocked."""
    parameters = identities([message for message, _ in skipped])
    run_raw("mark_skipped", {**parameters, "reasons": [reason for _, reason in skipped]}, using=using)


def identities(messages: Iterable[OutgoingMessage]) -> dict[str, Any]:
    """Return the parameters by which a statement finds these messages, and no others that got their IDs."""
    message_ids = b"".join([message.message_id.bytes for message in messages]).hex(",", 16)
    return {"ids": array([message.id for message in messages]), "message_ids": f"{{{message_ids}}}"}


def forget_head(head_id: int, *, using: str) -> None:
    """Unblock the aggregate that a message blocked, unless the message is pending."""
    pending = Message.objects.using(using).filter(pk=OuterRef("head_id"), status=MessageStatus.PENDING)
    BlockedAggregate.objects.using(using).filter(~Exists(pending), head_id=head_id).delete()


def release_ended(partitions: Iterable[int], *, using: str) -> None:
    """Unblock the aggregates of these partitions that messages park which have ended or are gone."""
    run_raw("release_ended", {"partitions": list(partitions)}, using=using)


def blocked(partitions: Iterable[int], *, using: str) -> list[Blocked]:
    due = ExpressionWrapper(Q(status=BlockedAggregate.Status.WAITING, retry_at__lte=Now()), BooleanField())
    rows = BlockedAggregate.objects.using(using).filter(partition__in=partitions)
    columns = ("aggregate_type", "aggregate_id", "partition", "head_id")
    return [Blocked._make(row) for row in rows.values_list(*columns, due)]


def count_blocked(*, using: str) -> Counter[tuple[str, str]]:
    """Count blocked aggregates of all relays by destination and status, up to 10,000."""
    rows = BlockedAggregate.objects.using(using).values_list("aggregate_type", "status")
    return Counter(rows[:_BLOCKED_COUNTED])


def make_partitions(*, using: str) -> None:
    rows = [RelayPartition(partition=partition) for partition in range(PARTITIONS)]
    RelayPartition.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def beat_partitions(partitions: Iterable[int], *, owner: int, using: str) -> None:
    """Send a heartbeat for the partitions among these that have this owner."""
    rows = RelayPartition.objects.using(using).filter(owner=owner, partition__in=partitions)
    rows.update(beat=F("beat") + 1)


def partitions(*, using: str) -> tuple[list[PartitionState], int]:
    """Return all partitions, and how many relays are alive."""
    states = RelayPartition.objects.using(using).order_by("partition")
    alive_since = Now() - conf.process_silent_after
    relays = Process.objects.using(using).filter(kind="relay", heartbeat_at__gt=alive_since)
    return [PartitionState._make(row) for row in states.values_list(*PartitionState._fields)], relays.count()


def take_partitions(states: Sequence[PartitionState], *, owner: int, using: str) -> set[int]:
    """Take partitions that are unchanged since they were read; return those taken."""
    parameters = {
        "partitions": [state.partition for state in states],
        "epochs": [state.epoch for state in states],
        "beats": [state.beat for state in states],
        "owner": owner,
    }
    return {row[0] for row in run_raw("take_partitions", parameters, using=using)}


def release_partitions(partitions: Iterable[int], *, owner: int, using: str) -> None:
    """Give partitions back, so that another relay can take them at once. Idempotent."""
    rows = RelayPartition.objects.using(using).filter(owner=owner, partition__in=partitions)
    rows.update(owner=None, epoch=F("epoch") + 1)


def add_destinations(names: Iterable[str], *, using: str) -> None:
    """Insert missing rows for these destinations. Idempotent."""
    rows = [DestinationState(aggregate_type=name) for name in names]
    DestinationState.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def destinations(*, using: str) -> dict[str, tuple[bool, str]]:
    """Return the registered destinations: whether each is paused, and the code of its outage, "" for none."""
    rows = DestinationState.objects.using(using).values_list("aggregate_type", "paused", "outage_code")
    return {name: (paused, outage) for name, paused, outage in rows}


def grant_tokens(wanted: Sequence[tuple[str, int, int]], *, using: str) -> dict[str, int]:
    """Take tokens for destinations, each (name, most, rate per second); return how many each got."""
    names, counts, rates = map(list, zip(*wanted, strict=True))
    return dict(run_raw("grant_tokens", {"types": names, "wanted": counts, "rates": rates}, using=using))


def write_outage(destination: str, outage: PublishFailure | None, *, using: str) -> None:
    """Record that a destination is unreachable, or (None) that it answers again."""
    row = DestinationState.objects.using(using).filter(pk=destination)
    if outage is None:
        row.update(outage_since=None, outage_code="", outage="")
    else:
        since, code = Coalesce("outage_since", Now()), outage.code[:LONGEST_CODE]
        row.update(outage_since=since, outage_code=code, outage=shown_message(outage.detail)[:LONGEST_ERROR])


def oldest_messages(types: Iterable[str] | None = None, *, using: str) -> dict[str, float]:
    """Return the age in seconds of the oldest pending message of each of these destinations that has one.

    ``types`` None means all registered destinations. Paused ones are left out: their messages wait on purpose.
    """
    if types is None:
        types = DestinationState.objects.using(using).values_list("aggregate_type", flat=True)
    return dict(statements.rows("oldest_message", {"types": list(types), "partitions": PARTITIONS}, using=using))


def _messages(statement: str, parameters: dict[str, Any], *, using: str) -> list[OutgoingMessage]:
    return list(map(OutgoingMessage._make, run_raw(statement, parameters, many=True, using=using)))


@dataclass(frozen=True, slots=True)
class GateHolder:
    """Session with an open transaction that wrote messages; pid 0 is a prepared transaction (``pg_prepared_xacts``).

    ``since`` is when its transaction began; ``state`` and ``query`` are its activity. They are None and "" where the
    role may not see them; membership in ``pg_read_all_stats`` lets it.
    """

    pid: int
    role: str
    application: str
    since: datetime | None
    state: str
    query: str


@dataclass(frozen=True, slots=True)
class GateState:
    """Position of the gate, number of messages waiting behind it (counted to 100,000), and the sessions holding it."""

    bound: int
    allocated: int
    behind: int
    holders: tuple[GateHolder, ...]


def gate_state(*, using: str) -> GateState:
    """Read the gate and the sessions that hold it. Role: operator, worker."""
    [(allocated, bound, pids, _)] = statements.rows("gate", using=using)
    behind = Message.objects.using(using).filter(pk__gt=bound)[:COUNTED].count()
    holders = tuple(GateHolder(*row) for row in statements.rows("gate_holders", {"pids": pids}, using=using))
    return GateState(bound, allocated, behind, holders)


def find_messages(
    *,
    status: str | None = None,
    aggregate_type: str | None = None,
    aggregate_id: str | None = None,
    event: str | None = None,
    store_id: StoreId | None = None,
    since: datetime | None = None,
    using: str,
) -> tuple[QuerySet[Message], bool]:
    """Return the messages that match all filters, newest first, and whether every message was searched.

    Failed and skipped messages are found by their index, as are the pending ones of an aggregate; anything else only
    among the newest ``NEWEST`` IDs.
    """
    exact = {"status": status, "aggregate_type": aggregate_type, "aggregate_id": aggregate_id, "event": event}
    filters = {name: value for name, value in {**exact, "store_id": store_id}.items() if value is not None}
    messages = created(Message.objects.using(using).filter(**filters).order_by("-pk"), since=since)
    one_aggregate = status == MessageStatus.PENDING and bool(aggregate_type and aggregate_id)
    if status in RARE or one_aggregate or not (filters or since):
        return messages, True
    return messages.filter(pk__gt=oldest_searched(using=using)), False


def oldest_searched(*, using: str) -> int:
    """Return the ID below which messages are not searched without an index."""
    newest = Message.objects.using(using).aggregate(high=Max("pk"))["high"] or 0
    return max(0, newest - NEWEST)
