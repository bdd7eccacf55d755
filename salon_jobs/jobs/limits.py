"""Pauses and limits queues, tasks, stores and keys at run time: ``pause``, ``resume``, ``limit``."""

from __future__ import annotations

from enum import Enum
from typing import Final
from uuid import UUID

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.jobs import wake
from salon_jobs.jobs.options import check_text
from salon_jobs.jobs.rules import LIFTED
from salon_jobs.models import Limit

# A rule's name, as long as its column.
_LONGEST: Final = 512


class _Kept(Enum):
    """Stands for what a call does not name, since None takes back."""

    KEPT = "kept"


def pause(
    *, queue: str | None = None, task: str | None = None, store_id: UUID | str | None = None, using: str | None = None
) -> None:
    """Start no more jobs of one queue, task or store; what is claimed already still runs. Role: operator, worker.

    Workers follow within a second. Raises OptionInvalid unless exactly one is named.
    """
    _change(_scope(queue, task, store_id), using, paused=True)


def resume(
    *, queue: str | None = None, task: str | None = None, store_id: UUID | str | None = None, using: str | None = None
) -> None:
    """Start jobs of a paused queue, task or store again; its limits stay. Role: operator, worker."""
    _change(_scope(queue, task, store_id), using, paused=False)
    wake.after_commit(None, using=using)


def limit(
    *,
    queue: str | None = None,
    task: str | None = None,
    store_id: UUID | str | None = None,
    key: str | None = None,
    max_concurrency: int | _Kept | None = _Kept.KEPT,
    rate: float | _Kept | None = _Kept.KEPT,
    lift: bool = False,
    using: str | None = None,
) -> None:
    """Limit how many jobs run at once in all processes, and how many start a second; what is not named stays.

    ``max_concurrency`` stands in the place of what is declared for this task, key or store; None lets that hold again,
    ``lift`` lets any number run. ``rate`` None is no limit; what is paused stays so. ``key`` goes with ``task``: the
    jobs of that task that share the concurrency key. Role: operator, worker. Workers follow within a second. Raises
    OptionInvalid naming the field.
    """
    values: dict[str, object] = {}
    if lift:
        if max_concurrency is not _Kept.KEPT:
            raise OptionInvalid("lift lets any number run: leave max_concurrency out")
        values["max_concurrency"] = LIFTED
    elif max_concurrency is not _Kept.KEPT:
        if max_concurrency is not None and (type(max_concurrency) is not int or not 0 <= max_concurrency < LIFTED):
            raise OptionInvalid(f"max_concurrency must be a whole number from 0, not {max_concurrency!r}")
        values["max_concurrency"] = max_concurrency
    if rate is not _Kept.KEPT:
        if rate is not None and not (isinstance(rate, (int, float)) and 0 < rate <= 1_000_000):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionInvalid(f"rate must be a number of jobs a second, more than 0, not {rate!r}")
        values["rate"] = rate
    if not values:
        raise OptionInvalid("say what shall hold: max_concurrency, rate or lift; None takes back")
    if key is not None:
        if task is None or queue is not None or store_id is not None:
            raise OptionInvalid("key goes with task, and with nothing else")
        check_text("task", task, _LONGEST)
        check_text("key", key, _LONGEST)
        scope = (Limit.Kind.KEY, rule_name(Limit.Kind.KEY, f"{task}:{key}"))
    else:
        scope = _scope(queue, task, store_id)
    _change(scope, using, **values)
    wake.after_commit(None, using=using)


def rule_name(kind: Limit.Kind, name: str) -> str:
    """Return the name by which a rule is kept: a store's id as the database writes it. Raises OptionInvalid."""
    check_text(kind, name, _LONGEST)
    if kind is Limit.Kind.KEY and not all(name.partition(":")):
        raise OptionInvalid(f"a key is named task:key, not {name!r}")
    if kind is not Limit.Kind.STORE:
        return name
    try:
        return str(UUID(name))
    except ValueError:
        raise OptionInvalid(f"store_id must be a uuid, not {name!r}") from None


def _change(scope: tuple[Limit.Kind, str], using: str | None, **values: object) -> None:
    kind, name = scope
    Limit.objects.using(using or conf.database).update_or_create(kind=kind, name=name, defaults=values)


def _scope(queue: str | None, task: str | None, store_id: UUID | str | None) -> tuple[Limit.Kind, str]:
    named = [
        (kind, value)
        for kind, value in ((Limit.Kind.QUEUE, queue), (Limit.Kind.TASK, task), (Limit.Kind.STORE, store_id))
        if value is not None
    ]
    if len(named) != 1:
        raise OptionInvalid("name exactly one of queue, task and store_id")
    kind, value = named[0]
    return kind, rule_name(kind, str(value) if isinstance(value, UUID) else value)
