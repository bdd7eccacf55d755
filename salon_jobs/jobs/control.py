"""Operators' changes to jobs: retry, cancel, discard, change, in batches of a thousand; and running one again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, overload

from django.db import IntegrityError, connections, transaction
from django.utils.translation import gettext
from psycopg.errors import UniqueViolation

from salon_jobs.conf import settings as conf
from salon_jobs.core.arguments import as_uuid, one_or_several
from salon_jobs.core.errors import EnqueueRefused, JobDoesNotExist, OptionInvalid, PayloadInvalid
from salon_jobs.core.records import ActionResult, EnqueueAction, JobState
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of
from salon_jobs.jobs import enqueue, registry
from salon_jobs.jobs.held import ChangedRows, Patience
from salon_jobs.jobs.options import NewJob, check_instant, checked
from salon_jobs.jobs.results import JobHandle, WithId, as_current_store
from salon_jobs.models import Job, Schedule
from salon_jobs.words import refusal


class _WithNumber(Protocol):
    @property
    def id(self) -> int: ...


_Numbered: TypeAlias = int | _WithNumber | Iterable[int | _WithNumber]
Jobs: TypeAlias = int | str | WithId | Iterable[int | str | WithId]
"""One job or several, each as its handle, a result of Django's tasks, its number or its public ID."""

BATCH = 1000
_CAN_BE_CANCELLED = (JobState.QUEUED, JobState.RUNNING, JobState.FAILED)
_CANCEL: Final = {"running": False, "reason": "cancelled"}
_INTERRUPT: Final = {"running": True, "reason": "cancelled"}
_DISCARD: Final = {"running": False, "reason": "discarded: by an operator"}
_names: Final = partial(
    one_or_several, "jobs are handles, numbers or public IDs", also=lambda given: as_uuid(given) is not None
)


@overload
def retry_jobs(
    jobs: _Numbered, *, at: datetime | None = ..., from_start: bool = ..., using: str | None = ...
) -> list[ActionResult[int]]: ...
@overload
def retry_jobs(
    jobs: Jobs, *, at: datetime | None = ..., from_start: bool = ..., using: str | None = ...
) -> list[ActionResult[Any]]: ...
def retry_jobs(
    jobs: Jobs, *, at: datetime | None = None, from_start: bool = False, using: str | None = None
) -> list[ActionResult[Any]]:
    """Requeue failed and cancelled jobs, allowing at least one more attempt. Role: operator, worker, web.

    ``jobs`` is a handle, a result of Django's tasks, a number or a public ID, or several of them; the results are in
    their order. They become due at ``at``, by default now. They keep their finished steps, unless they are to run
    ``from_start``. ``using`` defaults to the alias of the job tables. The web role can only retry jobs of its current
    store: call it inside ``tenant_context``. A job is left unchanged if another waits under its key, or a newer one
    runs, and its result names that one. Each thousand is a transaction (a savepoint inside yours). Raises OptionInvalid
    if ``at`` is not an aware datetime (or naive with ``USE_TZ = False``), or if ``jobs`` has a value that identifies no
    job.
    """
    at, using = None if at is None else check_instant("at", at), alias_of(using)
    allowed = gettext("only failed and cancelled jobs can be retried")
    then = "operator_forget_steps" if from_start else ""
    change = partial(_change, "operator_retry", {"at": at}, allowed, using, takes_keys=True, then=then)
    return _wake(_by_name(jobs, change, using), using)


@overload
def discard_jobs(jobs: _Numbered, *, using: str | None = ...) -> list[ActionResult[int]]: ...
@overload
def discard_jobs(jobs: Jobs, *, using: str | None = ...) -> list[ActionResult[Any]]: ...
def discard_jobs(jobs: Jobs, *, using: str | None = None) -> list[ActionResult[Any]]:
    """Cancel queued and failed jobs with the reason ``discarded``: they will not run again.

    Running jobs are left alone; ``cancel_jobs`` asks them to end. Roles, ``using``, order and batches as in
    ``retry_jobs``.
    """
    using = alias_of(using)
    allowed = gettext("only queued and failed jobs can be discarded")
    return _by_name(jobs, partial(_cancel, _DISCARD, allowed, using), using)


@overload
def change_jobs(
    jobs: _Numbered, *, priority: int | None = ..., queue: str | None = ..., using: str | None = ...
) -> list[ActionResult[int]]: ...
@overload
def change_jobs(
    jobs: Jobs, *, priority: int | None = ..., queue: str | None = ..., using: str | None = ...
) -> list[ActionResult[Any]]: ...
def change_jobs(
    jobs: Jobs, *, priority: int | None = None, queue: str | None = None, using: str | None = None
) -> list[ActionResult[Any]]:
    """Change the priority or queue, or both, of queued jobs. Roles, ``using``, order and batches as in ``retry_jobs``.

    Raises OptionInvalid naming the field, and when neither is given.
    """
    if priority is None and queue is None:
        raise OptionInvalid("nothing to change: pass priority or queue")
    checked({"priority": priority, "queue": queue})
    values, using = {"priority": priority, "queue": queue}, alias_of(using)
    allowed = gettext("only queued jobs can be changed")
    return _wake(_by_name(jobs, partial(_change, "operator_change", values, allowed, using), using), using)


@overload
def cancel_jobs(jobs: _Numbered, *, using: str | None = ...) -> list[ActionResult[int]]: ...
@overload
def cancel_jobs(jobs: Jobs, *, using: str | None = ...) -> list[ActionResult[Any]]: ...
def cancel_jobs(jobs: Jobs, *, using: str | None = None) -> list[ActionResult[Any]]:
    """Cancel jobs in any state but succeeded. Roles, ``using``, order and batches as in ``retry_jobs``.

    The process of a running job is asked to end it after your commit, so that finishing a job never waits for your
    transaction; ``detail`` says so. The handler sees the request in ``current_job().cancelled()``. If it ends by itself
    before it is interrupted, the job can still succeed. Raises HeldUp within two seconds, with nothing of its thousand
    changed, if another transaction holds one of them; inside your transaction, if it holds a running one. If it takes
    that one between this call and your commit, HeldUp comes after the commit, and no running one of them was asked.
    """
    alias = alias_of(using)

    def cancel(ids: Sequence[int]) -> list[ActionResult[int]]:
        patience = Patience()
        if not connections[alias].in_atomic_block:
            changed = [
                patience.attempt(partial(_cancel_and_ask, batch, alias), _rows(batch), using=alias)
                for batch in _batches(sorted(ids, reverse=True))
            ]
            by_id = {result.id: result for results in changed for result in results}
            return [by_id[id_] for id_ in ids]
        results, running = _cancel_but_running(ids, alias)
        for batch in _batches(running):
            patience.attempt(partial(_try_to_ask, batch, alias), _rows(batch), using=alias)
            ask = partial(_ask_to_end, batch, alias)
            transaction.on_commit(partial(Patience().attempt, ask, _rows(batch), using=alias), using=alias)
        return results

    return _by_name(jobs, cancel, alias)


def cancel_jobs_at_once(jobs: Jobs, *, using: str | None = None) -> list[ActionResult[Any]]:
    """Cancel jobs like ``cancel_jobs``, but ask running ones to end in your transaction, which their end waits for.

    So that everything is done or nothing, in a transaction that is short.
    """
    alias = alias_of(using)
    return _by_name(jobs, partial(_cancel_and_ask, using=alias), alias)


def run_again(job: Job | int | str | WithId, arguments: Mapping[str, Any], *, using: str | None = None) -> JobHandle:
    """Enqueue a new job like an earlier one, due now, with these arguments; the earlier one stays as it is.

    It has the same task, store, queue, priority, attempts and kept result, and the same keys unless the task derives
    them from the arguments. ``arguments`` are all of them but the store. Role: web, worker; of a store's job, inside
    ``tenant_context``. Raises JobDoesNotExist, UnknownTask, PayloadInvalid; EnqueueRefused if its key is another's.
    """
    using = alias_of(using)
    if not isinstance(job, Job):
        given = _names(job)
        if len(given) != 1:
            raise OptionInvalid(f"run_again takes one job, not {len(given)}")
        row = Job.objects.using(using).filter(pk__in=_numbers(given, using).values()).first()
        if row is None:
            raise JobDoesNotExist(f"there is no job {given[0]}, or you may not see it")
        job = row
    new = job_with(job, arguments)
    same = {name: getattr(job, name) for name in ("store_id", "queue", "priority", "max_attempts", "keep_result")}
    new = replace(
        new,
        **same,
        job_key=new.job_key or job.job_key,
        job_key_mode="unsafe_dedupe",
        concurrency_key=new.concurrency_key or job.concurrency_key,
        ordered=new.ordered if new.concurrency_key else job.ordered,
        run_at=None,
    )
    enqueue.look_for_another_transaction(using)
    with transaction.atomic(using=using):
        handle = enqueue.add(new, using=using)
        if handle.action is not EnqueueAction.INSERTED:
            raise EnqueueRefused(f"job {handle.id} is queued or running under its key")
    return enqueue.run_at_once_in_tests(handle)


def job_with(row: Job | Schedule, arguments: Mapping[str, Any]) -> NewJob:
    """Return the job that enqueueing a row's task with these arguments adds, with the options in its payload, if any.

    Raises UnknownTask, PayloadInvalid.
    """
    declared = registry.get_declaration(row.task)
    store_name = declared.payload.store_name
    if store_name in arguments:
        raise PayloadInvalid(f"task {row.task!r}: leave out {store_name!r}, since the store stays")
    given = {**arguments, **({store_name: row.store_id} if store_name else {})}
    return declared.job_of((), given, like=row.payload)


def _by_name(
    jobs: Jobs, change: Callable[[Sequence[int]], list[ActionResult[int]]], using: str
) -> list[ActionResult[Any]]:
    """Change the jobs with these names, by their numbers; the results have the names. Raises OptionInvalid."""
    given = _names(jobs)
    numbers = _numbers(given, using)
    results = iter(change([numbers[name] for name in given if name in numbers]))
    return [
        replace(next(results), id=name)
        if name in numbers
        else ActionResult(name, False, gettext("there is no such job, or you may not see it"))
        for name in given
    ]


def _numbers(names: Sequence[Any], using: str) -> dict[Any, int]:
    """Return the numbers of jobs by their given names; leave out a public ID that belongs to no job."""
    public = {name: as_uuid(name) for name in names if not isinstance(name, int)}
    numbers = {name: name for name in names if isinstance(name, int)}
    if not public:
        return numbers
    with as_current_store(using):
        rows = Job.objects.using(using).filter(public_id__in=set(public.values())).values_list("public_id", "pk")
        found = dict(rows)
    return numbers | {name: found[uuid] for name, uuid in public.items() if uuid in found}


def _cancel(
    values: dict[str, Any], allowed: str, using: str, ids: Sequence[int], *, endable: Collection[str] = ()
) -> list[ActionResult[int]]:
    """Cancel jobs, the newest first: the end of a job that others wait for would start them between two batches."""
    changed = _change("operator_cancel", values, allowed, using, sorted(ids, reverse=True), endable=endable)
    results = {result.id: result for result in changed}
    return [results[id_] for id_ in ids]


def _cancel_and_ask(ids: Sequence[int], using: str) -> list[ActionResult[int]]:
    """Cancel jobs, and ask the running ones to end, in the caller's transaction."""
    results, running = _cancel_but_running(ids, using)
    for batch in _batches(running):
        _ask_to_end(batch, using)
    return results


def _cancel_but_running(ids: Sequence[int], using: str) -> tuple[list[ActionResult[int]], list[int]]:
    """Cancel the jobs that do not run; return the results of all, and the running ones, which are still to be asked."""
    allowed = gettext("only queued, running and failed jobs can be cancelled")
    results = _cancel(_CANCEL, allowed, using, ids, endable=_CAN_BE_CANCELLED)
    return results, sorted({result.id for result in results if result.changed and result.detail})


def _ask_to_end(ids: Sequence[int], using: str) -> None:
    """Request cancellation of running jobs, and cancel those queued again or failed by now."""
    rows = statements.rows("operator_cancel", {"ids": list(ids), **_INTERRUPT}, using=using)
    remaining = set(ids) - {row[0] for row in rows}
    with connections[using].cursor() as cursor:
        if remaining and not conf.roles.one_user:
            # The web role may change running jobs only through the function.
            cursor.execute("SELECT salon_jobs_cancel(%s::bigint[])", [sorted(remaining)])
        cursor.execute("SELECT pg_notify(%s, %s)", [enqueue.wake_ups.channel, enqueue.CANCEL])


def _try_to_ask(ids: Sequence[int], using: str) -> None:
    """Find out whether the jobs can be asked to end; afterwards none of their rows is locked."""
    with transaction.atomic(using=using):
        _ask_to_end(ids, using)
        transaction.set_rollback(True, using=using)


def _batches(ids: Sequence[int]) -> list[Sequence[int]]:
    return [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]


def _rows(ids: Sequence[int]) -> ChangedRows:
    return ChangedRows(Job, '"id"', ids, (Job,))


def _wake(results: list[ActionResult[Any]], using: str) -> list[ActionResult[Any]]:
    """Wake workers after the commit if a job was changed."""
    if any(result.changed for result in results):
        enqueue.wake_ups.after_commit(using)
    return results


def _change(
    statement: str,
    values: dict[str, Any],
    allowed: str,
    using: str,
    ids: Sequence[int],
    *,
    takes_keys: bool = False,
    endable: Collection[str] = (),
    then: str = "",
) -> list[ActionResult[int]]:
    """Run a statement that changes jobs, a thousand per transaction; ``allowed`` are the states it changes.

    With ``takes_keys``, the statement leaves a job alone if another waiting job holds its key. Jobs that it leaves in
    one of the states ``endable`` are asked to end. ``then`` is a statement for the changed jobs.
    """
    results: list[ActionResult[int]] = []
    for batch in _batches(ids):
        try:
            with transaction.atomic(using=using):
                rows = statements.rows(statement, {"ids": list(batch), **values}, using=using)
                changed = {row[0] for row in rows}
                if then and changed:
                    statements.rows(then, {"ids": list(changed)}, using=using)
                left_alone = [id_ for id_ in batch if id_ not in changed]
                states = dict(Job.objects.using(using).filter(pk__in=left_alone).values_list("pk", "state"))
                with_keys = left_alone if takes_keys else []
                holders = statements.rows("holders_of_keys", {"ids": with_keys}, using=using) if with_keys else []
        except IntegrityError as error:
            # Another job has taken the key in the meantime.
            if not isinstance(error.__cause__, UniqueViolation):
                raise
            if len(batch) == 1:
                results.append(ActionResult(batch[0], False, _has_same_key(gettext("another job"))))
            else:
                for id_ in batch:
                    results += _change(
                        statement, values, allowed, using, [id_], takes_keys=takes_keys, endable=endable, then=then
                    )
            continue
        details = dict.fromkeys(left_alone, gettext("there is no such job, or you may not see it"))
        details |= {id_: refusal(state, allowed) for id_, state in states.items()}
        # A job that was running a moment ago may now be queued again or failed.
        ending = {id_ for id_, state in states.items() if state in endable}
        details |= dict.fromkeys(ending, gettext("still running; its worker was asked to end it"))
        details |= {
            id_: _has_same_key(gettext("job %(id)s") % {"id": holder}, runs=runs) for id_, holder, runs in holders
        }
        results += [ActionResult(id_, id_ in changed or id_ in ending, details.get(id_, "")) for id_ in batch]
    return results


def _has_same_key(holder: str, *, runs: bool = False) -> str:
    if runs:
        return gettext("%(job)s, which is newer, runs under its key; wait for its end") % {"job": holder}
    return gettext("%(job)s waits under its key; cancel that one first") % {"job": holder}
