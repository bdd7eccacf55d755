"""Statements of the relay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import transaction

from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure
from salon_jobs.conf import settings as conf
from salon_jobs.core.error_report import storable
from salon_jobs.core.records import PARTITIONS
from salon_jobs.db import statements
from salon_jobs.db.statements import execute_hot, hot_rows, many_hot_rows

_LONGEST_ERROR = 4000


class Gate(NamedTuple):
    """How far messages may be relayed now (``bound``), and the backends whose transactions keep it there."""

    allocated: int
    bound: int
    holders: tuple[int, ...]


class Wanted(NamedTuple):
    """Request for up to ``take`` messages of one partition of one aggregate type, after an ID."""

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
    retry_count: int
    due: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """Message that could not be published on its ``tries``-th attempt; ``final``: it is not retried."""

    message: OutgoingMessage
    code: str
    error: str
    tries: int
    wait: timedelta
    final: bool


class Unresolvable(NamedTuple):
    """Message that nothing at its destination accepts now. It is charged no attempt, and always retried."""

    message: OutgoingMessage
    answer: PublishFailure
    final: bool = False


class PartitionState(NamedTuple):
    """Partition as it was read."""

    partition: int
    owner: int | None
    epoch: int
    beat: int


def gate() -> Gate:
    """Read the gate. Messages up to its bound are read afterwards, by a separate statement."""
    [(allocated, bound, holders)] = hot_rows("gate", {})
    return Gate(allocated, bound, tuple(holders))


def fetch(wanted: Sequence[Wanted], bound: int, *, held: Iterable[str] = ()) -> list[OutgoingMessage]:
    """Return the next messages, in the order requested and by ID, without the aggregates ``held`` (all of one type)."""
    parameters = {
        "types": [w.aggregate_type for w in wanted],
        "partitions": [w.partition for w in wanted],
        "afters": [w.after for w in wanted],
        "takes": [w.take for w in wanted],
        "bound": bound,
        "held": list(held),
    }
    return _messages("fetch_messages", parameters)


def fetch_heads(ids: Sequence[int]) -> dict[int, OutgoingMessage]:
    """Return the first pending message of each of these messages' aggregates, by the ids given; skip those not pending.

    A message without an aggregate is itself the first.
    """
    rows = many_hot_rows("fetch_heads", {"ids": list(ids)}) if ids else []
    return {row[0]: OutgoingMessage._make(row[1:]) for row in rows}


def fetch_aggregate(
    aggregate_type: str, aggregate_id: str, *, after: int, upto: int, take: int
) -> list[OutgoingMessage]:
    """Return the messages of one aggregate that were passed over while it was blocked."""
    parameters = {
        "aggregate_type": aggregate_type,
        "aggregate_id": aggregate_id,
        "after": after,
        "upto": upto,
        "take": take,
    }
    return _messages("fetch_aggregate", parameters)


def fetch_passed_over(
    aggregate_type: str, partition: int, *, upto: int, known: Iterable[int], take: int
) -> list[OutgoingMessage]:
    """Return pending messages up to an ID that nothing accounts for."""
    parameters = {
        "aggregate_type": aggregate_type,
        "partition": partition,
        "upto": upto,
        "known": list(known),
        "take": take,
    }
    return _messages("fetch_passed_over", parameters)


def message_types() -> list[str]:
    """Return the aggregate types that have pending messages."""
    return [row[0] for row in hot_rows("message_types", {})]


def mark_published(ids: Sequence[int]) -> None:
    """Mark messages as published, and unblock the aggregates they blocked."""
    execute_hot("mark_published", {"ids": _array(ids)})


def mark_skipped(reasons: Mapping[int, str]) -> None:
    """Mark messages as skipped, with the reason of each."""
    execute_hot("mark_skipped", {"ids": list(reasons), "reasons": list(reasons.values())})


def write_failures(failures: Sequence[Failure], *, owner: int) -> set[int]:
    """Record failures and block their aggregates; return the IDs that this owner may still judge."""
    ids = [failure.message.id for failure in failures]
    parameters = {
        "ids": ids,
        "tries": [failure.tries for failure in failures],
        "finals": [failure.final for failure in failures],
        "waits": [failure.wait.total_seconds() for failure in failures],
        "errors": [storable(failure.error)[:_LONGEST_ERROR] for failure in failures],
        "owner": owner,
    }
    with transaction.atomic(using=conf.database):
        written = {row[0] for row in hot_rows("mark_unpublished", parameters)}
        ours = [failure for failure in failures if failure.message.id in written]
        unblock(ours)
        codes = [failure.code[:64] for failure in ours]
        execute_hot("block", {"ids": [failure.message.id for failure in ours], "codes": codes})
    return written


def write_unresolvable(messages: Sequence[Unresolvable], *, owner: int, wait_s: float = 0.0) -> set[int]:
    """Block the aggregates of messages that nothing accepts now; return the IDs of newly blocking messages.

    None is retried before ``wait_s``.
    """
    parameters = {
        "ids": [each.message.id for each in messages],
        "codes": [each.answer.code[:64] for each in messages],
        "errors": [storable(str(each.answer))[:_LONGEST_ERROR] for each in messages],
        "owner": owner,
        "wait_s": wait_s,
    }
    return {row[0] for row in hot_rows("block_unresolvable", parameters)}


def unblock(failures: Sequence[Failure]) -> None:
    """Unblock these messages and their aggregates."""
    execute_hot(
        "unblock",
        {
            "heads": [failure.message.id for failure in failures],
            "types": [failure.message.aggregate_type for failure in failures],
            "aggregates": [failure.message.aggregate_id for failure in failures],
        },
    )


def forget_head(head_id: int) -> None:
    """Delete the row of a head that is no longer pending."""
    execute_hot("unblock", {"heads": [head_id], "types": [""], "aggregates": [""]})


def blocked(partitions: Iterable[int]) -> list[Blocked]:
    """Return the blocking rows of these partitions."""
    return [Blocked._make(row) for row in hot_rows("blocked_aggregates", {"partitions": list(partitions)})]


def count_blocked() -> dict[tuple[str, str], int]:
    """Count blocked aggregates of all relays by aggregate type and status, up to 10,000."""
    return {(row[0], row[1]): row[2] for row in hot_rows("count_blocked", {})}


def make_partitions() -> None:
    """Insert missing partition rows. Idempotent."""
    execute_hot("make_partitions", {"partitions": PARTITIONS})


def beat_partitions(owner: int) -> None:
    """Send a heartbeat for the owner of partitions."""
    execute_hot("beat_partitions", {"owner": owner})


def partitions() -> tuple[list[PartitionState], int]:
    """Return all partitions, and how many relays are alive."""
    rows = hot_rows("partitions", {"silent_after": conf.process_silent_after})
    return [PartitionState._make(row[:4]) for row in rows], rows[0][4] if rows else 0


def take_partitions(seen: Sequence[PartitionState], *, owner: int) -> set[int]:
    """Take partitions that are unchanged since they were seen; return those taken."""
    parameters = {
        "partitions": [s.partition for s in seen],
        "epochs": [s.epoch for s in seen],
        "beats": [s.beat for s in seen],
        "owner": owner,
    }
    return {row[0] for row in hot_rows("take_partitions", parameters)}


def release_partitions(partitions: Iterable[int], *, owner: int) -> None:
    """Give partitions back. Idempotent."""
    execute_hot("release_partitions", {"partitions": list(partitions), "owner": owner})


def know_destinations(types: Iterable[str]) -> None:
    """Insert missing rows for these destinations. Idempotent."""
    execute_hot("know_destinations", {"types": list(types)})


def destinations() -> dict[str, bool]:
    """Return the known destinations, and whether each is paused."""
    return {row[0]: row[1] for row in hot_rows("destinations", {})}


def grant_tokens(wanted: Sequence[tuple[str, int, int]]) -> dict[str, int]:
    """Take tokens for destinations, each (name, most, rate per second); return how many each got."""
    types, counts, rates = map(list, zip(*wanted, strict=True))
    parameters = {"types": types, "wanted": counts, "rates": rates}
    return {row[0]: row[1] for row in hot_rows("grant_tokens", parameters)}


def note_outage(aggregate_type: str, code: str = "", detail: str = "") -> None:
    """Record that a destination is unreachable, or, without a code, that it answers again."""
    parameters = {"aggregate_type": aggregate_type, "code": code[:64], "detail": storable(detail)[:_LONGEST_ERROR]}
    execute_hot("note_outage", parameters)


def oldest(types: Iterable[str]) -> dict[str, float]:
    """Return the age in seconds of the oldest pending message of each aggregate type that has one."""
    return {row[0]: row[1] for row in hot_rows("oldest_message", {"types": list(types), "partitions": PARTITIONS})}


def _messages(statement: str, parameters: dict[str, Any]) -> list[OutgoingMessage]:
    return list(map(OutgoingMessage._make, many_hot_rows(statement, parameters)))


def _array(ids: Sequence[int]) -> str:
    # PostgreSQL's own notation: psycopg would convert the list element by element.
    return f"{{{','.join(map(str, ids))}}}"


# Messages behind the gate are counted up to this number.
COUNTED: Final = 100_000


@dataclass(frozen=True, slots=True)
class GateHolder:
    """Session whose open transaction wrote messages; pid 0 is a prepared transaction (``pg_prepared_xacts``).

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
    """Read the gate and who holds it. Role: operator, worker."""
    [(allocated, bound, pids)] = statements.rows("gate", using=using)
    [(behind,)] = statements.rows("messages_behind", {"bound": bound, "most": COUNTED}, using=using)
    holders = tuple(GateHolder(*row) for row in statements.rows("gate_holders", {"pids": pids}, using=using))
    return GateState(bound, allocated, behind, holders)
