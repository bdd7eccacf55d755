"""Limits and pauses of queues, tasks, stores and keys, changeable at run time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

from django.db.models.functions import Now
from django.utils.translation import gettext

from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.arguments import check_text, checked_names
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.records import ActionResult, GivenStore, StoreId
from salon_jobs.core.text import short_repr
from salon_jobs.db.connections import alias_of
from salon_jobs.db.statements import run_raw
from salon_jobs.jobs import enqueue, registry
from salon_jobs.jobs.options import check_number, parse_rate
from salon_jobs.models import Limit

# Value that lifts a declared limit: so many jobs never run at once.
LIFTED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """Limits in effect for one scope; None means unlimited."""

    paused: bool = False
    max_concurrency: int | None = None
    rate: float | None = None
    paused_by: str = ""
    paused_at: datetime | None = None
    burst: int | None = None

    @property
    def bucket(self) -> float:
        """Starts of the rate that a quiet time saves up: ``burst``, or else those of a second, at least one."""
        return float(self.burst or max(1.0, self.rate or 1.0))

    @property
    def blocks(self) -> bool:
        """Whether no job may start at all."""
        return self.paused or self.max_concurrency == 0

    @property
    def limits(self) -> bool:
        """Whether jobs must be counted."""
        return self.max_concurrency is not None or self.rate is not None


def scopes_of(queue: str, task: str, store: StoreId | None, key: str | None) -> tuple[str, ...]:
    """Return the scopes (``kind:name``) whose limits apply to a job."""
    names = (f"queue:{queue}", f"task:{task}", f"store:{store or store_key().none}")
    return names if key is None else (*names, f"key:{task}:{key}")


def count_by_scope(running: Iterable[Sequence[Any]]) -> Counter[str]:
    """Add up the rows of ``running_counts`` by each scope to which a limit can apply."""
    counts: Counter[str] = Counter()
    for *job, count in running:
        for scope in scopes_of(*job):
            counts[scope] += count
    return counts


class Limits:
    """Limits in effect, by scope (``kind:name``). False if there are none.

    ``declared`` are those of a task (``task:name``), of each key of a task (``key:name``) and of each store
    (``store``). A number in the row of the same scope overrides them.
    """

    def __init__(
        self, rows: Mapping[str, EffectiveLimit], declared: Mapping[str, EffectiveLimit] | None = None
    ) -> None:
        self._declared = declared or {}
        self._limits = {scope: self._in_force(scope, row) for scope, row in rows.items()}
        self._any = bool(self._declared) or any(
            effective.blocks or effective.limits for effective in self._limits.values()
        )

    def __bool__(self) -> bool:
        return self._any

    def __getitem__(self, scope: str) -> EffectiveLimit:
        effective = self._limits.get(scope)
        if effective is None:
            # There can be any number of keys and stores, so each is resolved at first use.
            effective = self._limits[scope] = self._in_force(scope, EffectiveLimit())
        return effective

    def allow(self, scopes: Sequence[str]) -> bool:
        """Return whether jobs in all of these scopes may start at all."""
        return not any(self[scope].blocks for scope in scopes)

    def forbidden(self, kind: str) -> list[str]:
        """Return the names of the queues, tasks or stores that may not start any job."""
        names = (scope.removeprefix(f"{kind}:") for scope in self._limits if scope.startswith(f"{kind}:"))
        return [name for name in names if self._limits[f"{kind}:{name}"].blocks]

    def counted(self, scopes: Sequence[str]) -> list[str]:
        """Return the scopes among these in which jobs must be counted."""
        return [scope for scope in scopes if self[scope].limits]

    def declared_for(self, scope: str) -> EffectiveLimit | None:
        """Return the limits that the tasks and settings declare."""
        kind, _, name = scope.partition(":")
        if kind == Limit.Kind.STORE.value:
            return None if name == str(store_key().none) else self._declared.get("store")
        return self._declared.get(f"key:{name.partition(':')[0]}" if kind == Limit.Kind.KEY.value else scope)

    def _in_force(self, scope: str, row: EffectiveLimit) -> EffectiveLimit:
        declared = self.declared_for(scope) or EffectiveLimit()
        most = declared.max_concurrency if row.max_concurrency is None else row.max_concurrency
        if row.rate is None:
            row = replace(row, rate=declared.rate, burst=row.burst or declared.burst)
        return replace(row, max_concurrency=None if most == LIFTED else most)


def load_limits(*, using: str) -> Limits:
    """Load the limits, and combine them with the declared ones. Role: worker, operator. Raises database errors."""
    return Limits(_stored(using), _declared())


def _stored(alias: str) -> dict[str, EffectiveLimit]:
    # Each process reads them twice a second; for the ORM that would be a tenth of its work at 20 jobs a second.
    return {scope: EffectiveLimit(*values) for scope, *values in run_raw("stored_limits", {}, using=alias)}


@dataclass(frozen=True, slots=True)
class ListedLimit:
    """Limits of one queue, task, store or key: in effect, and ``declared``.

    ``name`` is the row's name; limits declared for every store are listed as ``*``, for every key of a task as
    ``task:*``. ``lifted``: no number is in effect, whatever is declared.
    """

    kind: str
    name: str
    paused: bool
    max_concurrency: int | None
    rate: float | None
    declared: int | None
    paused_by: str = ""
    paused_at: datetime | None = None
    lifted: bool = False


def list_limits(*, using: str) -> list[ListedLimit]:
    """List the limits in effect, by kind and name; ``declared`` comes from this process's tasks and settings.

    Role: operator, worker. Raises database errors.
    """
    stored, declared = _stored(using), _declared()
    limits = Limits(stored, declared)
    anyones = {"store": "store:*"} | {scope: f"{scope}:*" for scope in declared if scope.startswith("key:")}
    scopes = stored.keys() | {anyones.get(scope, scope) for scope in declared}
    listed: list[ListedLimit] = []
    for scope in scopes:
        kind, _, name = scope.partition(":")
        effective, declares = limits[scope], limits.declared_for(scope)
        lifted = scope in stored and stored[scope].max_concurrency == LIFTED
        if lifted or effective.blocks or effective.limits or declares is not None:
            most = None if declares is None else declares.max_concurrency
            values = (effective.paused, effective.max_concurrency, effective.rate, most)
            listed.append(ListedLimit(kind, name, *values, effective.paused_by, effective.paused_at, lifted))
    return sorted(listed, key=lambda each: (each.kind, each.name))


def _declared() -> dict[str, EffectiveLimit]:
    declared = {"store": EffectiveLimit(max_concurrency=conf.store_concurrency)}
    for task in registry.tasks():
        given = task.limits
        declared[f"task:{task.name}"] = EffectiveLimit(False, given.max_concurrency, given.rate, burst=given.burst)
        declared[f"key:{task.name}"] = EffectiveLimit(False, given.per_key, given.key_rate, burst=given.burst)
    return {scope: each for scope, each in declared.items() if each.limits}


# Longest name of a limit, the length of its column.
_LONGEST: Final = 512


class _Kept(Enum):
    """Default for arguments left out, since None removes a limit."""

    KEPT = "kept"


def pause(
    *,
    queue: str | None = None,
    task: str | None = None,
    store_id: GivenStore | None = None,
    by: str = "",
    using: str | None = None,
) -> None:
    """Pause one queue, task or store: its jobs no longer start, except those already claimed. Role: operator, worker.

    ``by`` names who pauses it, and is shown with the waiting jobs; pausing again does not change it. Takes effect
    within a second. Raises OptionInvalid unless exactly one is named, and if ``by`` is longer than 255 characters.
    """
    pause_scopes([":".join(_scope(queue, task, store_id))], by=by, using=using)


def resume(
    *, queue: str | None = None, task: str | None = None, store_id: GivenStore | None = None, using: str | None = None
) -> None:
    """Resume a paused queue, task or store; its limits stay. Role: operator, worker."""
    resume_scopes([":".join(_scope(queue, task, store_id))], using=using)


def pause_scopes(scopes: Iterable[str], *, by: str, using: str | None = None) -> list[ActionResult[str]]:
    """Pause each scope (``kind:name``); one paused already keeps the earlier ``by``. Role: operator, worker."""
    check_text("by", by, 255, least=0)
    values: dict[str, Any] = {"paused": True, "paused_at": Now(), "paused_by": by}
    return _set_paused(scopes, values, gettext("it is paused already"), alias_of(using))


def resume_scopes(scopes: Iterable[str], *, using: str | None = None) -> list[ActionResult[str]]:
    """Resume each scope, and wake workers. Role: operator, worker."""
    values, using = {"paused": False, "paused_at": None, "paused_by": ""}, alias_of(using)
    results = _set_paused(scopes, values, gettext("it is not paused"), using)
    enqueue.wake_ups.after_commit(using)
    return results


def _set_paused(scopes: Iterable[str], values: dict[str, Any], refusal: str, using: str) -> list[ActionResult[str]]:
    rows = Limit.objects.using(using)
    results: list[ActionResult[str]] = []
    for scope in checked_names("scopes", scopes, _LONGEST + 10):
        kind, _, name = scope.partition(":")
        if kind not in Limit.Kind.values:
            raise OptionInvalid(
                f"a scope is one of {', '.join(Limit.Kind.values)}, a colon and a name, not {short_repr(scope)}"
            )
        check_text(kind, name, _LONGEST)
        named = {"kind": kind, "name": name}
        is_new = values["paused"] and rows.get_or_create(**named, defaults=values)[1]
        changed = is_new or rows.filter(**named).exclude(paused=values["paused"]).update(**values) > 0
        results.append(ActionResult(scope, changed, "" if changed else refusal))
    return results


def limit(
    *,
    queue: str | None = None,
    task: str | None = None,
    store_id: GivenStore | None = None,
    key: str | None = None,
    max_concurrency: int | _Kept | None = _Kept.KEPT,
    rate: float | str | _Kept | None = _Kept.KEPT,
    burst: int | _Kept | None = _Kept.KEPT,
    lift: bool = False,
    using: str | None = None,
) -> None:
    """Limit how many jobs run at once in all processes, and how many start in a given time; omitted options stay.

    ``max_concurrency`` overrides the limit declared for this task, key or store; None restores the declared one, and
    ``lift`` removes any limit. ``rate`` is a number per second, or text with a unit, such as "100/m" (s, m, h or d);
    None restores the declared one, if any. ``burst`` is how many starts a quiet time saves up for the rate, which then
    begin at once; None: those of a second. A pause stays in effect. ``key`` requires ``task``: the jobs of that task
    that share the concurrency key. Role: operator, worker. Takes effect within a second. Raises OptionInvalid naming
    the field.
    """
    values: dict[str, object] = {}
    if lift:
        if max_concurrency is not _Kept.KEPT:
            raise OptionInvalid("lift lets any number of jobs run: leave max_concurrency out")
        values["max_concurrency"] = LIFTED
    elif max_concurrency is not _Kept.KEPT:
        if max_concurrency is not None and (type(max_concurrency) is not int or not 0 <= max_concurrency < LIFTED):
            raise OptionInvalid(f"max_concurrency must be a whole number from 0, not {short_repr(max_concurrency)}")
        values["max_concurrency"] = max_concurrency
    if rate is not _Kept.KEPT:
        values["rate"] = None if rate is None else parse_rate(rate)
    if burst is not _Kept.KEPT:
        if burst is not None:
            check_number("burst", burst, 1, 2**31 - 1)
        values["burst"] = burst
    if not values:
        raise OptionInvalid("pass max_concurrency, rate, burst or lift; None removes a limit")
    kind, name = _scope(queue, task, store_id, key)
    rows = Limit.objects.using(alias_of(using))
    rows.update_or_create(kind=kind, name=name, defaults=values)
    enqueue.wake_ups.after_commit(rows.db)


def save_limit(row: Limit, *, using: str) -> None:
    """Write a limit as a form has it, and wake workers, since more jobs may run. Role: operator."""
    row.save(using=using)
    enqueue.wake_ups.after_commit(using)


def delete_limits(scopes: Iterable[str], *, using: str) -> list[ActionResult[str]]:
    """Delete the limits and pauses of these scopes (``kind:name``), and wake workers. Role: operator."""
    results: list[ActionResult[str]] = []
    for scope in checked_names("scopes", scopes, _LONGEST + 10):
        kind, _, name = scope.partition(":")
        deleted, _ = Limit.objects.using(using).filter(kind=kind, name=name).delete()
        results.append(ActionResult(scope, deleted > 0, "" if deleted else gettext("it has no limit")))
    enqueue.wake_ups.after_commit(using)
    return results


def scope_named(
    *, queue: str | None = None, task: str | None = None, store_id: GivenStore | None = None, key: str | None = None
) -> str:
    """Return the scope (``kind:name``) that ``limit`` would limit. Raises OptionInvalid."""
    return ":".join(_scope(queue, task, store_id, key))


def limit_name(kind: Limit.Kind, name: str) -> str:
    """Return the name under which a limit is stored; a store's id as PostgreSQL writes it. Raises OptionInvalid."""
    check_text(kind, name, _LONGEST)
    if kind is Limit.Kind.KEY and not all(name.partition(":")):
        raise OptionInvalid(f"a key is named task:key, not {name!r}")
    if kind is not Limit.Kind.STORE:
        return name
    try:
        return str(store_key().parse(name))
    except ValueError as error:
        raise OptionInvalid(f"store_id {error}, not {name!r}") from None


def _scope(
    queue: str | None, task: str | None, store_id: GivenStore | None, key: str | None = None
) -> tuple[Limit.Kind, str]:
    if key is not None:
        if task is None or queue is not None or store_id is not None:
            raise OptionInvalid("pass key together with task, and with nothing else")
        check_text("task", task, _LONGEST)
        check_text("key", key, _LONGEST)
        return Limit.Kind.KEY, limit_name(Limit.Kind.KEY, f"{task}:{key}")
    named = [
        (kind, value)
        for kind, value in ((Limit.Kind.QUEUE, queue), (Limit.Kind.TASK, task), (Limit.Kind.STORE, store_id))
        if value is not None
    ]
    if len(named) != 1:
        raise OptionInvalid("name exactly one of queue, task and store_id")
    kind, value = named[0]
    return kind, limit_name(kind, str(value) if isinstance(value, UUID | int) else value)
