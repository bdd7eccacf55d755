"""Replays of messages, and skipped messages sent after all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.records import ActionResult, MessageStatus
from salon_jobs.db import statements
from salon_jobs.db.instants import from_project
from salon_jobs.models import Message, Replay
from salon_jobs.models.fields import MARGIN, first_id_at
from salon_jobs.outbox import emit
from salon_jobs.outbox.control import (
    BATCH,
    Key,
    change_in_batches,
    key_of,
    lock_holders,
    lock_messages,
    put_in_front,
    why_not,
)

# One transaction writes them all; while it is open, relays send nothing that others write after it.
MOST: Final = 100_000
_ENDED: Final = (MessageStatus.PUBLISHED, MessageStatus.FAILED, MessageStatus.SKIPPED)
_LONGEST_REASON: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCriteria:
    """Selection of messages to send again: by ``ids``, or by ``aggregate_type`` and a range.

    The range is one of IDs, ``from_id`` to ``to_id``, or of creation times, from ``since`` to before ``until``; one end
    may be open, not both. ``statuses`` are any of published, skipped, failed.
    """

    ids: tuple[int, ...] = ()
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    event: str | None = None
    from_id: int | None = None
    to_id: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    statuses: tuple[str, ...] = tuple(status.value for status in _ENDED)

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            if (instant := getattr(self, name)) is not None:
                object.__setattr__(self, name, from_project(instant))

    def check(self) -> None:
        """Raise OptionInvalid for criteria that select nothing, everything, or by two means at once."""
        ends = (self.from_id, self.to_id, self.since, self.until)
        if bool(self.ids) == any(each is not None for each in (self.aggregate_type, *ends)):
            raise OptionInvalid("select the messages by ids, or by aggregate_type with a range of ids or times")
        if not self.ids and (self.aggregate_type is None or all(end is None for end in ends)):
            raise OptionInvalid("aggregate_type needs a range: from_id, to_id, since or until")
        if self.ids and (self.aggregate_id is not None or self.event is not None):
            raise OptionInvalid("ids already select the messages: omit aggregate_id and event")
        for name in ("since", "until"):
            instant: datetime | None = getattr(self, name)
            if instant is not None and instant.tzinfo is None:
                raise OptionInvalid(f"{name} must have a time zone")
        if not self.statuses or set(self.statuses) - set(_ENDED):
            raise OptionInvalid("statuses must be some of published, failed and skipped")

    def described(self) -> dict[str, Any]:
        criteria = {name: value for name, value in asdict(self).items() if value is not None and value != ()}
        for name in criteria.keys() & {"since", "until"}:
            criteria[name] = criteria[name].isoformat()
        return criteria | {"statuses": sorted(self.statuses)}


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a replay or dry run: how many messages, the first and last ID, and which IDs were refused.

    ``replay_id`` is the audit row; it is None for a dry run and when there was nothing to send.
    """

    messages: int
    first: int | None
    last: int | None
    replay_id: int | None = None
    refused: tuple[ActionResult[int], ...] = ()


def replay_messages(
    criteria: MessageCriteria,
    *,
    requested_by: str = "",
    reason: str = "",
    dry_run: bool = False,
    using: str | None = None,
) -> Replayed:
    """Write the selected messages again under new IDs, in their old order; the relays send them.

    Role: operator, worker. Content, store and producer are copied; ``replay_of`` names the original, so that consumers
    can recognize a replay. One transaction (a savepoint inside yours) writes all messages and an audit row with who and
    why. While it is open, relays hold back what others write, hence the limit of 100,000 messages, which take a second
    or two. A message that became pending again in the meantime is left out, and reported as refused if selected by ID.
    ``dry_run`` counts and writes nothing. Raises OptionInvalid for more messages, for invalid criteria, and without
    ``requested_by`` and ``reason``.
    """
    criteria.check()
    if not dry_run and not (requested_by and reason and len(reason) <= _LONGEST_REASON):
        raise OptionInvalid("pass requested_by, and a reason of 1 to 1,000 characters")
    alias = using or conf.database
    with transaction.atomic(using=alias):
        # One more than allowed shows that more match.
        chosen = list(_select(criteria, alias).values_list("pk", flat=True)[: MOST + 1])
        if len(chosen) > MOST:
            raise OptionInvalid(f"more than {MOST:,} messages match; name a smaller range")
        if chosen and not dry_run:
            values = {"chosen": chosen, "statuses": list(criteria.statuses)}
            [(written,)] = statements.rows("replay_messages", values, using=alias)
            chosen = list[int](written or ())
        replay_id = None
        if chosen and not dry_run:
            row = Replay.objects.using(alias).create(
                requested_by=requested_by, reason=reason, criteria=criteria.described(), messages=len(chosen)
            )
            replay_id = row.pk
            emit.after_commit(using=alias)
        refused = sorted(set(criteria.ids) - set(chosen))
        reasons = why_not(refused, f"only {', '.join(sorted(criteria.statuses))} ones are sent again", alias)
    first, last = (chosen[0], chosen[-1]) if chosen else (None, None)
    results = tuple(ActionResult(id_, False, reasons[id_]) for id_ in refused)
    return Replayed(len(chosen), first, last, replay_id, results)


def _select(criteria: MessageCriteria, using: str) -> QuerySet[Message]:
    everything = Message.objects.using(using)
    bounds: dict[str, Any] = {"pk__gte": criteria.from_id, "pk__lte": criteria.to_id, "pk__in": criteria.ids or None}
    exact = {name: getattr(criteria, name) for name in ("aggregate_type", "aggregate_id", "event")}
    filters = {name: value for name, value in (bounds | exact).items() if value is not None}
    messages = everything.filter(**filters, status__in=criteria.statuses).order_by("pk")
    if criteria.since is not None:
        first = first_id_at(criteria.since - MARGIN, everything)
        messages = messages.filter(pk__gte=first, created_at__gte=criteria.since)
    if criteria.until is not None:
        last = first_id_at(criteria.until + MARGIN, everything)
        messages = messages.filter(pk__lte=last, created_at__lt=criteria.until)
    return messages


def send_skipped_messages(ids: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Make skipped messages pending again. Role: operator, worker.

    They arrive in ID order, before the unsent later messages of their aggregate. Messages of a blocked aggregate stay
    skipped: they would overtake the message that blocks it, or be overtaken by those behind it. Each transaction
    changes all given messages of some aggregates, about a thousand. ``using`` defaults to the alias of the job tables.
    Results are in the order of the IDs.
    """
    return change_in_batches(_send, ids, using, split=_whole_aggregates)


def _whole_aggregates(ids: Sequence[int], using: str) -> Iterator[list[int]]:
    """Yield batches that split no aggregate.

    The relay catches up an aggregate from one message onward and must find all later ones there; messages added while
    it does so could be passed over.
    """
    keys: dict[int, Key] = {}
    for start in range(0, len(ids), BATCH):
        rows = Message.objects.using(using).filter(pk__in=ids[start : start + BATCH])
        keys |= {message.pk: key_of(message) for message in rows.only("aggregate_type", "aggregate_id")}
    groups: dict[Key, list[int]] = {}
    for message_id in ids:
        groups.setdefault(keys.get(message_id, message_id), []).append(message_id)
    batch: list[int] = []
    for group in groups.values():
        batch += group
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _send(ids: Sequence[int], using: str) -> dict[int, str]:
    skipped = [message for message in lock_messages(ids, using) if message.status == MessageStatus.SKIPPED]
    holders = lock_holders(skipped, using)
    refused: dict[int, str] = {}
    fronts: dict[Key, Message] = {}
    for message in skipped:
        if holder := holders.get(key_of(message)):
            refused[message.pk] = (
                f"message {holder.head_id} blocks its aggregate; send this one when that one is sent or skipped"
            )
        else:
            fronts.setdefault(key_of(message), message)
    sent = {message.pk for message in skipped} - refused.keys()
    Message.objects.using(using).filter(pk__in=sent).update(
        status=MessageStatus.PENDING, retry_count=0, retry_at=None, ended_at=None, last_error=""
    )
    put_in_front(fronts, holders, using)
    return refused | why_not(set(ids) - sent - refused.keys(), "only skipped messages can be sent", using)
