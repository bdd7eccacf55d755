"""Flows: jobs that run after other jobs of their flow, and access to the results of those."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar, Unpack, get_args, get_type_hints, overload

import msgspec
from django.db import transaction
from django.db.models import Exists, OuterRef

from salon_jobs.core.arguments import check_id, check_text
from salon_jobs.core.as_json import as_member
from salon_jobs.core.errors import FlowInvalid, JobDoesNotExist, NoResult
from salon_jobs.core.records import ActionResult, JobState
from salon_jobs.core.text import short_repr
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of
from salon_jobs.jobs import control, enqueue
from salon_jobs.jobs.options import EnqueueOptions
from salon_jobs.jobs.result_waits import Wait
from salon_jobs.jobs.results import as_current_store, get_job
from salon_jobs.jobs.task import BoundTask, Call, Task, check_call, get_task
from salon_jobs.models import FlowEdge, FlowMember, FlowRecord, Job, JobResult
from salon_jobs.tenancy.active import current_store_id

R = TypeVar("R")
Condition: TypeAlias = Literal["succeeded", "failed", "ended"]
_NO_KEYS: Final = ("job_key", "job_key_mode", "unique_for", "max_wait")


@dataclass(eq=False, slots=True)
class Member:
    """A job of a flow. ``outcome``, as it was when it was read: None before it has ended."""

    flow: Flow = field(repr=False)
    task: str
    after: tuple[Member | int, ...] = field(repr=False)
    condition: Condition
    outcome: str | None = None
    job_id: int | None = None

    @property
    def id(self) -> int:
        """The job's number. Raises FlowInvalid before the end of the ``with`` block, which enqueues it."""
        if self.job_id is None:
            raise FlowInvalid(
                f"{self.task!r} has no ID: it is enqueued at the end of the with block, unless an earlier flow with "
                "the same key has not ended (is_new is False)"
            )
        return self.job_id


# Members grouped by task, then by equal options, in order of addition.
_Alike: TypeAlias = dict[str, list[tuple[EnqueueOptions, BoundTask[Any], list[tuple[Member, Call[Any]]]]]]


class Flow:
    """A set of jobs with dependencies. The ``with`` block collects its members, and its end enqueues them.

    ``is_new`` is False if a flow with this key had not ended: then nothing is added. ``id`` is None before the end of
    the block.
    """

    def __init__(self, name: str, key: str | None = None, *, using: str | None = None, id: int | None = None) -> None:
        self.name, self.key, self.id, self.is_new = name, key, id, id is None
        self.using = alias_of(using)
        self._store_id, self._blocks = current_store_id(), 0
        self._added: list[Member] = []
        self._alike: _Alike = {}

    def __repr__(self) -> str:
        return f"<Flow {self.name} #{self.id}>"

    def __enter__(self) -> Self:
        self._blocks += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        added, alike = self._added, self._alike
        self._blocks, self._added, self._alike = self._blocks - 1, [], {}
        if kind is None and added:
            self._enqueue(added, alike)
            enqueue.run_at_once_in_tests(None)

    def add(
        self,
        call: Call[...],
        *,
        after: Member | Iterable[Member] = (),
        when: Condition = "succeeded",
        **options: Unpack[EnqueueOptions],
    ) -> Member:
        """Add the call of a task as a member, which runs when all members in ``after`` have ended, or at once.

        ``when`` is how they must have ended: all of them "succeeded", at least one of them "failed" (or was cancelled),
        or simply "ended". Otherwise the member is cancelled. ``options`` are those of ``using``, except job keys.
        Raises FlowInvalid, OptionInvalid, PayloadInvalid.
        """
        if not self._blocks:
            raise FlowInvalid("members are added in the with block of their flow, whose end enqueues them")
        takes = "a member is the call of a task, such as fetch.call(url=url)"
        check_call(takes, call, FlowInvalid, of_djangos="let a member enqueue it")
        if when not in get_args(Condition):
            raise FlowInvalid(f"when is 'succeeded', 'failed' or 'ended', not {short_repr(when)}")
        if refused := [name for name in _NO_KEYS if options.get(name) is not None]:
            raise FlowInvalid(f"members have no {refused[0]}: give the flow a key")
        earlier = tuple(dict.fromkeys(after if isinstance(after, Iterable) else [after]))
        for member in earlier:
            if not isinstance(member, Member):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise FlowInvalid(f"after takes what add() returned, not {short_repr(member)}")
            if member.flow is not self and (self.id is None or member.flow.id != self.id):
                raise FlowInvalid(f"{member.task!r} is a member of another flow, {member.flow!r}, not of {self!r}")
        if when != "succeeded" and not earlier:
            raise FlowInvalid(f"when={when!r} says how those in after must end: pass after=[…]")
        task = get_task(call.task)
        if task.ordered and earlier:
            raise FlowInvalid(
                f"{call.task!r} is ordered, so after=[…] could make it wait for jobs that wait for it: let a member "
                "that is not ordered come after those, and enqueue it"
            )
        store_id = call.arguments.store_id
        if store_id not in (None, self._store_id):
            raise FlowInvalid(
                f"{call.task!r} is for store {store_id}, the flow for {self._store_id or 'no store'}: all its "
                "members belong to the store in whose tenant_context it begins, or to none"
            )
        member = Member(self, call.task, earlier, when)
        runs = self._alike.setdefault(call.task, [])
        if not runs or runs[-1][0] != options:
            runs.append((options, task.using(**options), []))
        runs[-1][2].append((member, call))
        self._added.append(member)
        return member

    def _enqueue(self, added: list[Member], alike: _Alike) -> None:
        """Write the collected members in one transaction. Raises EnqueueRefused, SchemaMissing."""
        with enqueue.enqueue_cursor(using=self.using), transaction.atomic(using=self.using):
            if self.id is not None:
                self._enqueue_members(self.id, added, alike)
                return
            values = {"name": self.name, "key": self.key, "store_id": self._store_id}
            [(flow_id, self.is_new)] = statements.rows("add_flow", values, using=self.using)
            if self.is_new:
                self._enqueue_members(flow_id, added, alike)
        self.id = flow_id

    def _enqueue_members(self, flow_id: int, added: list[Member], alike: _Alike) -> None:
        for _, task, members in chain.from_iterable(alike.values()):
            # A template's key would make this job another enqueue's, without the flow.
            pattern = replace(task.task.new_job(None, task.options), job_key=None, unique_for=None, max_wait=None)
            contents = task.contents(call for _, call in members)
            plain = (msgspec.structs.replace(content, job_key=None) for content in contents)
            handles = enqueue.add_many(pattern, plain, using=self.using)
            for (member, _), handle in zip(members, handles, strict=True):
                member.job_id = handle.id
        edges = [
            (member.id, each.id if isinstance(each, Member) else each) for member in added for each in member.after
        ]
        values = {
            "flow_id": flow_id,
            "ids": statements.array(member.id for member in added),
            "conditions": statements.array(member.condition for member in added),
            "edge_ids": statements.array(job_id for job_id, _ in edges),
            "edge_afters": statements.array(after_id for _, after_id in edges),
        }
        statements.rows("add_flow_members", values, using=self.using)

    def members(self) -> list[Member]:
        """Read the members as they are now, in the order of their jobs. With roles, the web reads its store's flows."""
        with as_current_store(self.using):
            return [self._member(row) for row in self._rows().order_by("pk")]

    def wait(self, timeout: timedelta | float) -> list[Member]:
        """Wait until all members have ended; return them with their outcomes.

        Raises WaitTimedOut after ``timeout`` (seconds, or a timedelta), WaitRefused inside the transaction that
        enqueued them, FlowInvalid before they are enqueued and in one of them, and JobDoesNotExist if this role cannot
        see the flow.
        """
        members: list[Member] = self._wait(timeout).run()
        return members

    async def await_members(self, timeout: timedelta | float) -> list[Member]:
        """Wait like ``wait``, from a coroutine."""
        members: list[Member] = await self._wait(timeout).arun()
        return members

    def _wait(self, timeout: timedelta | float) -> Wait:
        if self.id is None:
            raise FlowInvalid(f"{self!r} has no members yet: they are enqueued at the end of its with block")
        return _FlowWait(self, timeout)

    def look_for_end(self) -> tuple[Any, list[Member]]:
        """Return the row of a member that has not ended, or None at the end; then also all members.

        Prefers a member that is not held: a held one may end without a run, by the end of another, and only the end of
        a run is announced. Raises JobDoesNotExist if no members are visible.
        """
        with as_current_store(self.using):
            is_held = Exists(FlowEdge.objects.using(self.using).filter(job_id=OuterRef("pk")))
            live = self._rows().filter(outcome=None).order_by(is_held, "-pk").first()
            members = [] if live else self.members()
        if live or members:
            return live, members
        raise JobDoesNotExist(
            f"flow {self.id} cannot be seen: it ended and was deleted, or is another store's: with roles, wait for a "
            "flow as the store that it belongs to"
        )

    @overload
    def results_of(self, task: Task[..., Coroutine[Any, Any, R]]) -> list[R]: ...
    @overload
    def results_of(self, task: Task[..., R]) -> list[R]: ...
    def results_of(self, task: Task[..., Any]) -> list[Any]:
        """Return the results of the succeeded members of this task, in the order of their jobs.

        In the flow of the running job, only of its predecessors. Raises NoResult if one keeps no result.
        """
        with as_current_store(self.using):
            rows = self._sources().filter(task=task.name, outcome="succeeded")
            ids = list(rows.order_by("pk").values_list("pk", flat=True))
            kept = JobResult.objects.using(self.using).filter(pk__in=ids)
            values = dict(kept.values_list("pk", "value"))
        if missing := [job_id for job_id in ids if job_id not in values]:
            raise NoResult(
                f"job {missing[0]} of {task.name!r} succeeded, but its result is not kept, or no longer: declare the "
                "task with a keep_result that outlasts the wait for it"
            )
        kind = get_type_hints(task.function).get("return", Any)
        return [msgspec.convert(values[job_id], kind, str_keys=True, dec_hook=as_member) for job_id in ids]

    @overload
    def result_of(self, task: Task[..., Coroutine[Any, Any, R]]) -> R: ...
    @overload
    def result_of(self, task: Task[..., R]) -> R: ...
    def result_of(self, task: Task[..., Any]) -> Any:
        """Return the result of the only member of this task, as ``results_of``. Raises NoResult, FlowInvalid."""
        results = self.results_of(task)
        if len(results) == 1:
            return results[0]
        if results:
            raise FlowInvalid(f"{self._has} {len(results)} of {task.name!r}: use results_of")
        raise NoResult(f"{self._has} no {task.name!r} that succeeded")

    # The subject of errors about members, and the members whose results are read.
    _has = "this flow has"

    def _sources(self) -> Any:
        return self._rows()

    def cancel(self) -> list[ActionResult[int]]:
        """Cancel all members that have not ended, in one transaction, so that none starts because of another's end.

        As ``cancel_jobs``: running ones are asked to end after the commit.
        """
        with transaction.atomic(using=self.using):
            rows = self._rows().filter(outcome=None).order_by("pk")
            ids: list[int] = list(rows.values_list("pk", flat=True))
            return control.cancel_jobs(ids, using=self.using)

    def retry(self) -> list[ActionResult[int]]:
        """Retry the members that failed, in one transaction.

        Members skipped because of them are held again. A member that comes after any of these waits for it.
        """
        with transaction.atomic(using=self.using):
            failed = self._rows().filter(outcome="failed")
            jobs = Job.objects.using(self.using).filter(pk__in=failed, state=JobState.FAILED).order_by("pk")
            return control.retry_jobs(jobs.values_list("pk", flat=True), using=self.using)

    def _rows(self) -> Any:
        return FlowMember.objects.using(self.using).filter(flow_id=self.id or 0)

    def _member(self, row: Any) -> Member:
        return Member(self, row.task, tuple(row.after), row.condition, row.outcome, row.pk)


class RunningFlow(Flow):
    """The flow of the running job, which is member ``me``. A ``with`` block adds members, in its transaction."""

    _has = "this job comes after"

    def __init__(self, job_id: int, *, using: str) -> None:
        row: Any = FlowMember.objects.using(using).filter(pk=job_id).first()
        if row is None:
            raise FlowInvalid(f"job {job_id} is no member of a flow")
        found = FlowRecord.objects.using(using).get(pk=row.flow_id)
        super().__init__(found.name, found.key, using=using, id=found.pk)
        self._store_id = found.store_id
        self.me = self._member(row)
        self._after: list[int] = row.after

    def _sources(self) -> Any:
        return self._rows().filter(pk__in=self._after)

    def _wait(self, timeout: timedelta | float) -> Wait:
        raise FlowInvalid("a member would wait for its own end: add one that comes after those that it needs")


class _FlowWait(Wait):
    """A wait for the ends of all current members, one after the other."""

    def __init__(self, flow: Flow, timeout: timedelta | float) -> None:
        super().__init__(timeout)
        self._flow = flow

    def look(self) -> float | None:
        """Return the seconds until the next query, or None if all have ended.

        Raises WaitTimedOut, WaitRefused, JobDoesNotExist.
        """
        live, self.value = self._flow.look_for_end()
        if live is None:
            return None
        record = None
        with suppress(JobDoesNotExist):  # it has just ended
            record = get_job(live.pk, using=self._flow.using)
        return self.await_end(live.pk, record, self._flow.using)


def flow(name: str, *, key: str | None = None, using: str | None = None) -> Flow:
    """Begin a flow, for a ``with`` block: its members are enqueued, in the caller's transaction, at its end.

    With a ``key``, it adds nothing while the store's earlier flow of this name and key has not ended. Its members
    belong to the current store or to none. Raises OptionInvalid.
    """
    check_text("name", name, 255)
    if key is not None:
        check_text("key", key, 512)
    return Flow(name, key, using=using)


def get_flow(flow_id: int, *, using: str | None = None) -> Flow:
    """Return the flow with this number. Raises JobDoesNotExist if there is none, or this role does not see it."""
    check_id("flow_id", flow_id)
    using = alias_of(using)
    with as_current_store(using):
        found = FlowRecord.objects.using(using).filter(pk=flow_id).first()
    if found is None:
        raise JobDoesNotExist(f"there is no flow {flow_id}, or it ended and was deleted")
    return Flow(found.name, found.key, using=using, id=found.pk)
