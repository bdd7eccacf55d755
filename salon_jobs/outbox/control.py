"""Operators' changes to messages and destinations: retry, skip, unblock, send again, pause, resume."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext, gettext_lazy

from salon_jobs.core.arguments import check_text, checked_ids
from salon_jobs.core.destinations import LONGEST, parse_destination
from salon_jobs.core.errors import MessageInvalid, OptionInvalid
from salon_jobs.core.records import ActionResult, MessageStatus
from salon_jobs.core.text import short_repr
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of
from salon_jobs.db.instants import from_project
from salon_jobs.models import BlockedAggregate, DestinationState, Message, Replay
from salon_jobs.models.fields import created
from salon_jobs.outbox import emit
from salon_jobs.words import refusal

_Key = tuple[str, str] | int
_BATCH: Final = 1000
_OPEN: Final = (MessageStatus.PENDING, MessageStatus.FAILED)
_PARKED: Final[str] = BlockedAggregate.Status.PARKED.value
_T = TypeVar("_T")
# One transaction writes them all; while it is open, relays send nothing that others write after it.
MOST: Final = 100_000
_REPLAYABLE: Final = (MessageStatus.PUBLISHED, MessageStatus.FAILED, MessageStatus.SKIPPED)
_LONGEST_REASON: Final = 1000
_BLOCKED: Final = gettext_lazy("message %(id)s blocks its aggregate; retry or skip that one first")
_GONE: Final = gettext_lazy("there is no such message, or you may not see it")


def _key_of(row: Message | BlockedAggregate) -> _Key:
    """Return the unit of ordering: the aggregate, or the message itself if it has none."""
    if row.aggregate_id:
        return row.aggregate_type, row.aggregate_id
    return row.head_id if isinstance(row, BlockedAggregate) else row.pk


def _lock_messages(ids: Sequence[int], using: str) -> list[Message]:
    """Lock and return messages by ID, lowest first, as they are once locked."""
    rows = Message.objects.using(using).select_for_update().filter(pk__in=ids).order_by("pk")
    return list(rows.only("aggregate_type", "aggregate_id", "partition", "store_id", "status"))


def _lock_holders(messages: Sequence[Message], using: str) -> dict[_Key, BlockedAggregate]:
    """Lock and return the rows that block the messages' aggregates."""
    ordered = Q(
        aggregate_type__in={message.aggregate_type for message in messages},
        aggregate_id__in={message.aggregate_id for message in messages if message.aggregate_id},
    )
    by_itself = Q(head_id__in=[message.pk for message in messages])
    rows = BlockedAggregate.objects.using(using).select_for_update().filter(ordered | by_itself).order_by("pk")
    return {_key_of(row): row for row in rows}


def _put_in_front(fronts: dict[_Key, Message], holders: dict[_Key, BlockedAggregate], using: str) -> None:
    """Have the relay send each message next in its aggregate, although it has already read past it."""
    blocked = BlockedAggregate.objects.using(using)
    waiting = BlockedAggregate.Status.WAITING
    for key, message in fronts.items():
        holder = holders.get(key)
        if holder is not None and message.pk <= holder.head_id:
            blocked.filter(pk=holder.pk).update(head_id=message.pk, status=waiting, retry_at=Now(), retry_count=0)
    blocked.bulk_create(
        [
            BlockedAggregate(
                aggregate_type=message.aggregate_type,
                aggregate_id=message.aggregate_id,
                partition=message.partition,
                head_id=message.pk,
                store_id=message.store_id,
                status=waiting,
                retry_at=Now(),
            )
            for key, message in fronts.items()
            if key not in holders
        ],
        ignore_conflicts=True,  # a relay blocked the aggregate in the meantime
    )


def retry_messages(ids: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Retry failed messages, and retry waiting messages now. Role: operator, worker.

    A failed message becomes pending with all its attempts restored and goes first in its aggregate; later messages
    follow it. A message whose aggregate is blocked by another message stays as it is, and its result names that
    message. ``using`` defaults to the alias of the job tables. Results are in the order of the IDs.
    """
    return _change_in_batches(_retry, ids, using)


def skip_messages(ids: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Mark pending and failed messages as skipped: they are never sent and no longer block their aggregate.

    Role: operator, worker; web, inside ``tenant_context``, for messages of the current store. A message that a relay is
    sending at this moment may still arrive. ``using`` and results are as in ``retry_messages``.
    """
    return _change_in_batches(_skip, ids, using)


def unpark(
    aggregates: Iterable[tuple[str, str]] = (), *, aggregate_type: str | None = None, using: str | None = None
) -> list[ActionResult[tuple[str, str]]]:
    """Retry at once the message that blocks each aggregate; the others follow in order.

    ``aggregates`` are pairs of aggregate type and aggregate ID. Alternatively, ``aggregate_type`` selects every blocked
    aggregate of one destination, including messages without an aggregate. If the blocking message was pruned or has
    ended, the aggregate simply continues. Role: operator, worker. Raises OptionInvalid unless exactly one of the two is
    given.
    """
    if not isinstance(aggregates, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionInvalid(f"aggregates are pairs of aggregate type and aggregate ID, not {short_repr(aggregates)}")
    named: dict[tuple[str, str], None] = {}
    for each in aggregates:
        match each:
            case (str(type_), str(id_)):
                check_text("aggregate_type", type_, LONGEST)
                check_text("aggregate_id", id_, LONGEST, least=0)
                named[type_, id_] = None
            case _:  # pyright: ignore[reportUnnecessaryComparison]
                raise OptionInvalid(
                    f"an aggregate is a pair of aggregate type and aggregate ID, not {short_repr(each)}"
                )
    if aggregate_type is not None:
        check_text("aggregate_type", aggregate_type, LONGEST)
    if bool(named) == bool(aggregate_type):
        raise OptionInvalid("pass aggregates, or aggregate_type for all of a destination")
    alias = alias_of(using)
    rows = BlockedAggregate.objects.using(alias).order_by("head_id")
    heads: dict[int, tuple[str, str]] = {}
    if aggregate_type:
        heads = {row.head_id: (aggregate_type, row.aggregate_id) for row in rows.filter(aggregate_type=aggregate_type)}
    for batch in _batches([pair for pair in named if pair[1]]):
        pairs = set(batch)
        types, ids = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
        for row in rows.filter(aggregate_type__in=types, aggregate_id__in=ids):
            if (pair := (row.aggregate_type, row.aggregate_id)) in pairs:
                heads[row.head_id] = pair
    results = [ActionResult(heads[each.id], each.changed, each.detail) for each in retry_heads(heads, using=alias)]
    blocked = set(heads.values())
    return [
        *results,
        *(ActionResult(pair, False, gettext("it is not blocked")) for pair in named if pair not in blocked),
    ]


def retry_heads(heads: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Unpark aggregates, as ``unpark`` does, named by the messages that block them."""
    return _change_in_batches(_retry_or_release, heads, using)


def _why_not(ids: Iterable[int], allowed: str, using: str) -> dict[int, str]:
    """Return for each message which status it has instead of ``allowed``."""
    statuses = dict(Message.objects.using(using).filter(pk__in=ids).values_list("pk", "status"))
    return {id_: refusal(statuses[id_], allowed) if id_ in statuses else str(_GONE) for id_ in ids}


def _batches(rows: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH))


def _change_in_batches(
    change: Callable[[Sequence[int], str], dict[int, str]],
    ids: Iterable[int],
    using: str | None,
    *,
    split: Callable[[Sequence[int], str], Iterable[Sequence[int]]] = lambda ids, using: _batches(ids),
) -> list[ActionResult[int]]:
    """Change all messages, lowest IDs first, so that a blocking message precedes the rest of its aggregate.

    ``change`` changes one batch in a transaction; it returns, by ID, why messages were refused.
    """
    alias, wanted = alias_of(using), checked_ids("ids", ids)
    refused: dict[int, str] = {}
    for batch in split(sorted(set(wanted)), alias):
        with transaction.atomic(using=alias):
            refusals = change(batch, alias)
            if len(refusals) < len(batch):
                emit.operator_changed(using=alias)
        refused |= refusals
    return [ActionResult(id_, id_ not in refused, refused.get(id_, "")) for id_ in wanted]


def _retry(ids: Sequence[int], using: str) -> dict[int, str]:
    messages = _lock_messages(ids, using)
    holders = _lock_holders(messages, using)
    refused = dict.fromkeys(set(ids) - {message.pk for message in messages}, str(_GONE))
    failed: list[int] = []
    at_once: list[int] = []
    fronts: dict[_Key, Message] = {}
    for message in messages:
        holder = holders.get(_key_of(message))
        is_head = holder is not None and holder.head_id == message.pk
        if message.status == MessageStatus.FAILED:
            if holder and not is_head and holder.status == _PARKED and holder.head_id not in failed:
                refused[message.pk] = _BLOCKED % {"id": holder.head_id}
                continue
            failed.append(message.pk)
            fronts.setdefault(_key_of(message), message)
        elif message.status != MessageStatus.PENDING:
            refused[message.pk] = refusal(message.status, gettext("only failed and waiting messages can be retried"))
        elif holder is None:
            refused[message.pk] = gettext("it is pending; the relay will send it")
        elif not is_head:
            refused[message.pk] = _BLOCKED % {"id": holder.head_id}
        else:
            at_once.append(message.pk)
    Message.objects.using(using).filter(pk__in=failed).update(
        status=MessageStatus.PENDING, retry_count=0, retry_at=None, ended_at=None
    )
    _put_in_front(fronts, holders, using)
    BlockedAggregate.objects.using(using).filter(head_id__in=at_once).update(
        status=BlockedAggregate.Status.WAITING, retry_at=Now()
    )
    return refused


def _skip(ids: Sequence[int], using: str) -> dict[int, str]:
    allowed = gettext("only pending and failed messages can be skipped")
    [(may_update,)] = statements.rows("may_update_messages", using=using)
    if not may_update:
        skipped_rows = statements.rows("skip_messages", {"ids": list(ids)}, using=using)
        return _why_not(set(ids) - {row[0] for row in skipped_rows}, allowed, using)
    skipped = [message.pk for message in _lock_messages(ids, using) if message.status in _OPEN]
    changes = {"status": MessageStatus.SKIPPED, "ended_at": Now(), "retry_at": None}
    Message.objects.using(using).filter(pk__in=skipped).update(**changes)
    BlockedAggregate.objects.using(using).filter(head_id__in=skipped).delete()
    return _why_not(set(ids) - set(skipped), allowed, using)


def _retry_or_release(heads: Sequence[int], using: str) -> dict[int, str]:
    """Retry the heads; release the aggregate of any head that is gone or has ended."""
    refused = _retry(heads, using)
    still_open = Message.objects.using(using).filter(pk__in=refused, status__in=_OPEN).values_list("pk", flat=True)
    rows = BlockedAggregate.objects.using(using).filter(head_id__in=set(refused) - set(still_open))
    released = set(rows.values_list("head_id", flat=True))
    rows.delete()
    return {head: why for head, why in refused.items() if head not in released}


def pause_destination(aggregate_type: str, *, by: str = "", using: str | None = None) -> None:
    """Stop sending to one destination until it is resumed; relays follow within a second. Role: operator, worker.

    Messages are still written, and wait. ``by`` names who pauses it; if it is already paused, the earlier ``by`` stays.
    Raises MessageInvalid for an invalid name, OptionInvalid for ``by`` longer than 255 characters.
    """
    pause_destinations([aggregate_type], by=by, using=using)


def resume_destination(aggregate_type: str, *, using: str | None = None) -> None:
    """Send a paused destination its waiting messages again, in order. Role and errors as in ``pause_destination``."""
    resume_destinations([aggregate_type], using=using)


def pause_destinations(names: Sequence[str], *, by: str, using: str | None = None) -> list[ActionResult[str]]:
    """Pause destinations, as ``pause_destination`` does."""
    check_text("by", by, 255, least=0)
    return _set_paused(
        names, {"paused": True, "paused_at": Now(), "paused_by": by}, gettext("it is paused already"), using
    )


def resume_destinations(names: Sequence[str], *, using: str | None = None) -> list[ActionResult[str]]:
    """Resume destinations, as ``resume_destination`` does."""
    return _set_paused(names, {"paused": False, "paused_at": None, "paused_by": ""}, gettext("it is not paused"), using)


def _set_paused(
    names: Sequence[str], values: Mapping[str, Any], refusal: str, using: str | None
) -> list[ActionResult[str]]:
    if not isinstance(names, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MessageInvalid(f"aggregate_type must be a string, not {short_repr(names)}")
    for name in names:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MessageInvalid(f"aggregate_type must be a string, not {short_repr(name)}")
        parse_destination(name)
    alias = alias_of(using)
    rows, changed = DestinationState.objects.using(alias), set[str]()
    with transaction.atomic(using=alias):
        rows.bulk_create([DestinationState(aggregate_type=name) for name in names], ignore_conflicts=True)
        for name in sorted(set(names)):
            if rows.filter(pk=name).exclude(paused=values["paused"]).update(**values):
                changed.add(name)
        emit.operator_changed(using=alias)
    return [ActionResult(name, name in changed, "" if name in changed else refusal) for name in names]


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
    statuses: tuple[str, ...] = tuple(status.value for status in _REPLAYABLE)

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            if (instant := getattr(self, name)) is not None:
                object.__setattr__(self, name, from_project(instant))

    def check(self) -> None:
        """Raise OptionInvalid for criteria that select nothing, everything, or by two means at once."""
        checked_ids("ids", self.ids)
        checked_ids("from_id and to_id", [each for each in (self.from_id, self.to_id) if each is not None])
        for name in ("aggregate_type", "aggregate_id", "event"):
            if (text := getattr(self, name)) is not None:
                check_text(name, text, LONGEST, least=0)
        ends = (self.from_id, self.to_id, self.since, self.until)
        if bool(self.ids) == any(each is not None for each in (self.aggregate_type, *ends)):
            raise OptionInvalid("select the messages by ids, or by aggregate_type with a range of ids or times")
        if not self.ids and (self.aggregate_type is None or all(end is None for end in ends)):
            raise OptionInvalid("aggregate_type needs a range: from_id, to_id, since or until")
        if self.ids and (self.aggregate_id is not None or self.event is not None):
            raise OptionInvalid("ids already select the messages: omit aggregate_id and event")
        for name in ("since", "until"):
            instant: object = getattr(self, name)
            if instant is not None and (not isinstance(instant, datetime) or instant.tzinfo is None):
                raise OptionInvalid(f"{name} must be a datetime with a time zone, not {short_repr(instant)}")
        statuses: Any = self.statuses
        if not isinstance(statuses, Collection) or not statuses or set(map(str, self.statuses)) - set(_REPLAYABLE):
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
    why. While it is open, relays hold back later messages of other writers, hence the limit of 100,000 messages, which
    take a second or two. A message that became pending again in the meantime is left out, and reported as refused if
    selected by ID. ``dry_run`` counts and writes nothing. Raises OptionInvalid for more messages, for invalid criteria,
    and without ``requested_by`` and ``reason``.
    """
    if not isinstance(criteria, MessageCriteria):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionInvalid(f"pass a MessageCriteria, not {short_repr(criteria)}")
    criteria.check()
    if not dry_run:
        if not (requested_by and reason):
            raise OptionInvalid("pass requested_by, and a reason")
        check_text("requested_by", requested_by, 255)
        check_text("reason", reason, _LONGEST_REASON)
    alias = alias_of(using)
    with transaction.atomic(using=alias):
        # One more than allowed, to detect that more match.
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
            emit.wake_ups.after_commit(alias)
        refused = sorted(set(criteria.ids) - set(chosen))
        allowed = gettext("only %(statuses)s ones are sent again")
        reasons = _why_not(refused, allowed % {"statuses": ", ".join(map(gettext, sorted(criteria.statuses)))}, alias)
    first, last = (chosen[0], chosen[-1]) if chosen else (None, None)
    results = tuple(ActionResult(id_, False, reasons[id_]) for id_ in refused)
    return Replayed(len(chosen), first, last, replay_id, results)


def _select(criteria: MessageCriteria, using: str) -> QuerySet[Message]:
    bounds: dict[str, Any] = {"pk__gte": criteria.from_id, "pk__lte": criteria.to_id, "pk__in": criteria.ids or None}
    exact = {name: getattr(criteria, name) for name in ("aggregate_type", "aggregate_id", "event")}
    filters = {name: value for name, value in (bounds | exact).items() if value is not None}
    messages = Message.objects.using(using).filter(**filters, status__in=criteria.statuses).order_by("pk")
    return created(messages, since=criteria.since, until=criteria.until)


def send_skipped_messages(ids: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Make skipped messages pending again. Role: operator, worker.

    They arrive in ID order, before the unsent later messages of their aggregate. Messages of a blocked aggregate stay
    skipped: they would overtake the message that blocks it, or the messages behind it would overtake them. Each
    transaction changes all given messages of some aggregates, about a thousand. ``using`` defaults to the alias of the
    job tables. Results are in the order of the IDs.
    """
    return _change_in_batches(_send, ids, using, split=_whole_aggregates)


def _whole_aggregates(ids: Sequence[int], using: str) -> Iterator[list[int]]:
    """Yield batches that split no aggregate.

    The relay catches up an aggregate from one message onward and must find all later ones there; messages added while
    it does so could be passed over.
    """
    keys: dict[int, _Key] = {}
    for start in range(0, len(ids), _BATCH):
        rows = Message.objects.using(using).filter(pk__in=ids[start : start + _BATCH])
        keys |= {message.pk: _key_of(message) for message in rows.only("aggregate_type", "aggregate_id")}
    groups: dict[_Key, list[int]] = {}
    for message_id in ids:
        groups.setdefault(keys.get(message_id, message_id), []).append(message_id)
    batch: list[int] = []
    for group in groups.values():
        batch += group
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _send(ids: Sequence[int], using: str) -> dict[int, str]:
    skipped = [message for message in _lock_messages(ids, using) if message.status == MessageStatus.SKIPPED]
    holders = _lock_holders(skipped, using)
    refused: dict[int, str] = {}
    fronts: dict[_Key, Message] = {}
    for message in skipped:
        if holder := holders.get(_key_of(message)):
            said = gettext("message %(id)s blocks its aggregate; send this one when that one is sent or skipped")
            refused[message.pk] = said % {"id": holder.head_id}
        else:
            fronts.setdefault(_key_of(message), message)
    sent = {message.pk for message in skipped} - refused.keys()
    Message.objects.using(using).filter(pk__in=sent).update(
        status=MessageStatus.PENDING, retry_count=0, retry_at=None, ended_at=None, last_error=""
    )
    _put_in_front(fronts, holders, using)
    return refused | _why_not(set(ids) - sent - refused.keys(), gettext("only skipped messages can be sent"), using)
