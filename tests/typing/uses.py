"""Right and wrong uses of the public API: type checkers flag the lines that end in E, and no other. Never imported."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID, uuid4

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ValidationError
from django.db.models import BaseConstraint, Model
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from psycopg import Connection

from salon_jobs import (
    Backoff,
    Discard,
    Retry,
    Snooze,
    access,
    admin,
    aemit,
    afan_out,
    aschedule,
    control,
    cron,
    current_job,
    current_store_id,
    emit,
    emit_many,
    enqueue_job,
    fan_out,
    flow,
    get_flow,
    get_job,
    jobs,
    models,
    schedule,
    signals,
    staff,
    store_task,
    task,
    tenancy,
    tenant_context,
    testing,
)
from salon_jobs.access import operations
from salon_jobs.backend import SalonJobsBackend, await_result, call, wait
from salon_jobs.backend import task as backend_task
from salon_jobs.brokers import publisher, source
from salon_jobs.core.errors import StoreRefused
from salon_jobs.db.router import JobTablesRouter
from salon_jobs.outbox import Draft
from salon_jobs.schedules.stored import ScheduleHandle
from salon_jobs.staff.apps import StoreAdminConfig
from salon_jobs.tenancy.request import TenantMiddleware
from salon_jobs.testing.backend import AtOnceBackend


@task(name="typing-system", max_attempts=3)
def system(reason: str = "cron") -> int:
    return len(reason)


@task(name="typing-once", at_most_once=True, discard_on=(LookupError,))
def once() -> None: ...


def days_after(last: date | None) -> list[date]:
    return [TODAY] if last is None else []


@store_task(name="typing-store", job_key="k:{store_id}:{day}", job_key_mode="preserve_run_at")
def of_store(store_id: UUID, day: date, note: str | None = None) -> None:
    job = current_job()
    assert_type(job.store_id, Any | None)
    assert_type(job.attempt, int)
    assert_type(job.step("parse", date.fromisoformat, "2026-05-05"), date)
    assert_type(job.step("round", round, 2.5, ndigits=None), int)
    assert_type(list(job.cursor("days", [day])), list[date])
    assert_type(list(job.cursor("more", days_after)), list[date])
    if note == "later":
        raise Snooze(timedelta(minutes=5))
    if note == "again":
        raise Retry(after=timedelta(minutes=5)) from OSError()
    raise Discard(f"{store_id} {day}")


@store_task(name="typing-limits", max_concurrency=8, concurrency_key="{store_id}", key_concurrency=2)
def limited(store_id: UUID) -> None: ...


@store_task(name="typing-ordered", concurrency_key="{store_id}", ordered=True)
def ordered(store_id: UUID) -> None: ...


@task(name="typing-ordered-skip", concurrency_key="all", ordered="skip_failed")
def ordered_skip() -> None: ...


@store_task(name="typing-async", atomic=False)
async def in_coroutine(store_id: UUID, day: date) -> int:
    assert_type(await current_job().astep("ask", without_options.function), int)
    return await current_job().astep("year", round, day.year)


@task
def without_a_name(day: date) -> int:
    return day.year


@task()
async def without_options() -> int:
    return 1


@dataclass
class Sale:
    day: date
    amount: int = 0


@store_task(name="typing-chunk", chunk=100, queue="sales", job_key="sale:{store_id}:{day}")
def in_chunks(store_id: UUID, sales: list[Sale]) -> int:
    return sum(sale.amount for sale in sales)


@store_task
def of_store_without_a_name(store_id: UUID, day: date) -> int:
    return day.year


@store_task(atomic=False, queue="mail")
async def of_store_without_a_transaction(store_id: UUID) -> int:
    return 1


async def await_it() -> None:
    assert_type(await in_coroutine(STORE, TODAY), int)
    assert_type(await aschedule(system.call(), every=timedelta(hours=1), key="hourly"), ScheduleHandle)
    assert_type(await of_store.aenqueue(STORE, TODAY, note="x"), jobs.JobHandle)
    assert_type(await of_store.using(priority=5).aenqueue(store_id=STORE, day=TODAY), jobs.JobHandle)
    assert_type(await of_store.aenqueue_many([of_store.call(STORE, TODAY)]), list[jobs.JobHandle])
    calls = iter([of_store.call(STORE, TODAY)])
    assert_type(await of_store.using(priority=5).aenqueue_many(calls), list[jobs.JobHandle])
    assert_type(await afan_out(of_store, jobs.FanOut(label="a"), day=TODAY), jobs.FanOutResult)
    assert_type(await aemit("rn::nats:::orders", aggregate_id="42", event="order.created", payload={"id": 42}), UUID)


STORE = uuid4()
TODAY = date(2026, 5, 5)
handle = of_store.enqueue(store_id=STORE, day=TODAY)
assert_type(handle, jobs.JobHandle)
assert_type(handle.action, jobs.EnqueueAction)
assert_type(handle.id, int)
assert_type(handle.public_id, UUID | None)
assert_type(handle.status() is jobs.JobState.QUEUED, bool)
assert_type(handle.refresh(), jobs.JobRecord)
assert_type(get_job(handle.id), jobs.JobRecord)
assert_type((handle.wait(0.5), handle.wait(timedelta(seconds=1))), tuple[Any, Any])
assert_type([error.worker_id for error in get_job(1, using="operator").errors], list[int | None])
an_error: jobs.AttemptError = handle.refresh().errors[0]
a_progress: jobs.Progress | None = handle.refresh().progress
of_store.enqueue(STORE, TODAY, note="x")
of_store.using(run_at=datetime.now(UTC), priority=-5, queue="mail", job_key="mine").enqueue(store_id=STORE, day=TODAY)
assert_type(of_store.enqueue_many(of_store.call(store_id=STORE, day=TODAY) for _ in range(3)), list[jobs.JobHandle])
of_store.using(job_key_mode="unsafe_dedupe").enqueue_many([of_store.call(STORE, TODAY)])
of_store.enqueue_many([of_store.call(STORE, TODAY)], then=system.call())
of_store.using(run_in=timedelta(minutes=5)).enqueue(STORE, TODAY)
of_store.using(expires_in=timedelta(minutes=5)).enqueue(STORE, TODAY)
limited.using(concurrency_key="mine").enqueue(store_id=STORE)
system.enqueue()
assert_type(without_a_name.enqueue(day=TODAY), jobs.JobHandle)
assert_type(without_a_name(TODAY), int)
assert_type(testing.perform_job(without_options), int)
assert_type(fan_out(of_store_without_a_name, day=TODAY), jobs.FanOutResult)
assert_type(of_store_without_a_name(STORE, TODAY), int)
of_store_without_a_transaction.enqueue(store_id=STORE)
in_coroutine.enqueue(store_id=STORE, day=TODAY)
assert_type(fan_out(in_coroutine, day=TODAY), jobs.FanOutResult)
assert_type(testing.perform_job(in_coroutine, store_id=STORE, day=TODAY), int)
assert_type(testing.perform_job(system, reason="test"), int)
assert_type(system("called as the function it is"), int)
with flow("order", key="7") as order:
    assert_type(order, jobs.Flow)
    first = order.add(system.call(), priority=1)
    assert_type(order.add(of_store.call(STORE, TODAY), after=[first], when="failed"), jobs.Member)
    assert_type((first.id, first.outcome), tuple[int, str | None])
assert_type(get_flow(order.id or 0).members(), list[jobs.Member])
assert_type(get_flow(order.id or 0).wait(timedelta(minutes=1)), list[jobs.Member])
assert_type(get_flow(order.id or 0).results_of(system), list[int])


def in_a_flow() -> None:
    with current_job().flow as own:
        assert_type(own, jobs.RunningFlow)
        assert_type(own.add(system.call(), after=own.me), jobs.Member)
    assert_type(own.result_of(system), int)
    assert_type(own.results_of(in_coroutine), list[int])


assert_type(enqueue_job("typing-system", {"reason": "cron"}, priority=1), jobs.JobHandle)
assert_type(fan_out(of_store, day=TODAY), jobs.FanOutResult)
assert_type(in_chunks, jobs.ChunkTask[Sale, int])
assert_type(in_chunks.enqueue(STORE, Sale(TODAY)), jobs.JobHandle)
assert_type(in_chunks.using(priority=1).enqueue(STORE, Sale(TODAY, 5)), jobs.JobHandle)
assert_type(in_chunks.enqueue_many(in_chunks.call(STORE, Sale(TODAY, n)) for n in range(3)), list[jobs.JobHandle])
assert_type(fan_out(in_chunks, day=TODAY), jobs.FanOutResult)
assert_type(in_chunks(STORE, [Sale(TODAY)]), int)
parameters = jobs.FanOut(jitter=timedelta(minutes=5), exclude=[STORE], label="a")
fanned = fan_out(of_store.using(priority=5), parameters, day=TODAY)
fan_out(of_store, jobs.FanOut(then=system.call()), day=TODAY)
assert_type(jobs.fan_out_progress(fanned.id), jobs.FanOutProgress)
cron("0 18 * * *", system, payload=lambda tick: {"reason": tick.isoformat()}, timezone="Asia/Tokyo")
cron("5 * * * *", system, payload={"reason": "cron"}, backfill=timedelta(hours=6), name="hourly", overlap=False)
with tenant_context(STORE):
    assert_type(current_store_id(), Any | None)
with tenant_context(str(STORE), atomic=False):
    pass


def divided(number: int, *, by: int) -> int:
    return number // by


async def later(number: int) -> int:
    return number


async def in_a_coroutine() -> int:
    async with tenant_context(STORE):
        return await tenancy.carry_store(later, atomic=False)(1)


with tenant_context(STORE, scope="session", atomic=False), tenant_context(STORE, switch=True, using="default"):
    assert_type(tenancy.carry_store(divided)(7, by=2), int)

MINUTE = timedelta(minutes=1)
NOW = datetime.now(UTC)


@task(
    name="typing-options",
    backoff=Backoff(base=MINUTE, factor=3, cap=MINUTE * 60, jitter=0.2),
    timeout=MINUTE,
    retry_on=(OSError, TimeoutError),
    fail_on=(ValueError,),
    discard_on=(LookupError,),
    wait_timeout=MINUTE,
    wait_overtime=MINUTE,
    waiting_shortens_timeout=True,
)
def with_options(at: datetime) -> None: ...


@task(name="typing-ping")
def ping() -> int:
    return 1


def every_task(tasks: list[jobs.Task[..., Any]], of_no_argument: jobs.Task[[], int]) -> None:
    assert_type(of_no_argument(), int)
    assert_type(of_no_argument.enqueue(), jobs.JobHandle)
    assert_type(tasks[0].name, str)


every_task([with_options, of_store, in_coroutine], ping)
assert_type(handle.action is jobs.EnqueueAction.INSERTED, bool)
assert_type(fanned.inserted + fanned.kept + fanned.paused, int)

in_chunks.enqueue(STORE)  # E
in_chunks.enqueue(STORE, TODAY)  # E
in_chunks.enqueue(TODAY, Sale(TODAY))  # E
in_chunks.call(STORE, [Sale(TODAY)])  # E
in_chunks(STORE, Sale(TODAY))  # E
wrong_chunk: jobs.ChunkTask[date, int] = in_chunks  # E
store_task(name="typing-one", chunk=10)(of_store.function)  # E
store_task(name="typing-chunk-outside", chunk=10, atomic=False)  # E
of_store.enqueue(day=TODAY)  # E
of_store.enqueue(store_id=STORE)  # E
of_store.enqueue(store_id="not a uuid", day=TODAY)  # E
of_store.enqueue(store_id=STORE, day="2026-05-05")  # E
of_store.enqueue(store_id=STORE, day=TODAY, extra=1)  # E
of_store.using(priority=1).enqueue(day=TODAY)  # E
of_store.using(prioritty=1)  # E
of_store.using(priority="high")  # E
of_store.using(job_key_mode="replase")  # E
of_store.using(run_at=TODAY)  # E
of_store.using(run_in=300)  # E
of_store.using(expires_in=300)  # E
of_store.using(concurrency_key=1)  # E
of_store.call(store_id=STORE)  # E
of_store.call(day=TODAY)  # E
of_store.enqueue_many(of_store.call(STORE, TODAY))  # E
of_store.using(priority=1).enqueue_many([system.call()])  # E
of_store.enqueue_many([system.call()])  # E
of_store.enqueue_many([of_store.call(STORE, TODAY)], then=system)  # E
of_store.enqueue_many([{"store_id": STORE, "day": TODAY}])  # E
of_store()  # E
of_store.delay(store_id=STORE, day=TODAY)  # E
of_store.using().apply_async()  # E


async def enqueue_wrongly() -> None:
    await of_store.aenqueue(store_id=STORE)  # E
    await aschedule(system, "0 9 * * 1", key="weekly")  # E
    await of_store.using(priority=1).aenqueue(STORE, "2026-05-05")  # E
    await of_store.aenqueue_many([system.call()])  # E
    await system.using(priority=1).aenqueue_many([of_store.call(STORE, TODAY)])  # E
    await afan_out("typing-store", day=TODAY)  # E
    await aemit("rn::nats:::orders", payload={})  # E


system.enqueue(reason=1)  # E
in_coroutine.enqueue(store_id=1, day=TODAY)  # E
in_coroutine(STORE, TODAY) + 1  # E
enqueue_job(system, {})  # E
enqueue_job("typing-system", [])  # E
enqueue_job("typing-system", {}, prioritty=1)  # E
enqueue_job("typing-system", {}, run_at="soon")  # E
cron("0 18 * * *", print)  # E
cron("0 18 * * *", system, backfill=60)  # E
cron("0 18 * * *", system, overlap="no")  # E
fan_out("typing-store", day=TODAY)  # E
fan_out(of_store, {"jitter": 5}, day=TODAY)  # E
jobs.FanOut(timedelta(minutes=5))  # E
jobs.FanOut(jitter=5)  # E
jobs.FanOut(then=system)  # E
jobs.FanOut(exclude=[1.5])  # E
jobs.fan_out_progress("1")  # E
tenant_context(5.5)  # E
tenant_context(uuid4(), scope="request")  # E
tenancy.carry_store(current_job)(7)  # E
Snooze(5)  # E
Retry()  # E
current_job().id.hex()  # E
current_job().step("round", round, "a")  # E
current_job().step("parse", date.fromisoformat, "2026-05-05").upper()  # E
current_job().cursor("days", 5)  # E
system.enqueue() + 1  # E

without_a_name.enqueue()  # E
without_a_name.enqueue(day="2026-05-05")  # E
of_store_without_a_name.enqueue()  # E
of_store_without_a_name(STORE, TODAY).upper()  # E
task("send-mail")  # E
store_task(name=5)  # E


store_task(name="typing-mode", job_key_mode="always")  # E
task(name="typing-retry", retry_on=(int,))  # E
task(name="typing-fail", fail_on=OSError)  # E
task(name="typing-discard", discard_on=[OSError])  # E
task(name="typing-limit", max_concurrency="4")  # E
task(name="typing-order", concurrency_key="a", ordered="always")  # E
task(name="typing-key", key_concurency=4)  # E


def a_task(one: jobs.Task[[int], str]) -> None:
    one.enqueue("1")  # E
    one(1) + 1  # E
    a_task(one.using(priority=1))  # E


wrong_task: jobs.Task[[str], int] = of_store  # E
Backoff(base=5)  # E
Backoff(limit=timedelta(hours=1))  # E
Discard()  # E
system.enqueue().action + 1  # E
wrong_action: jobs.EnqueueAction = "inserted"  # E
wrong_state: jobs.JobState = "queued"  # E
get_job(1.5)  # E
flow("order", key=7)  # E
get_flow("1")  # E
wrong_results: list[str] = get_flow(1).results_of(system)  # E
flow("order").add(system.call(), when="done")  # E
jobs.Flow("order").add(system)  # E
wrong_member: jobs.Member = jobs.Flow("order").add(system.call()).id  # E
wrong_flow: jobs.RunningFlow = jobs.Flow("order")  # E
wrong_result: str = current_job().flow.result_of(system)  # E
wrong_record: jobs.JobRecord = system.enqueue()  # E
wrong_error: jobs.AttemptError = get_job(1).errors  # E
wrong_progress: jobs.Progress = get_job(1).progress  # E
wrong_handle: jobs.JobHandle = system.enqueue().id  # E
system.enqueue().wait("5")  # E
wrong_fan_out: jobs.FanOutResult = fan_out(of_store, day=TODAY).id  # E
wrong_progress: jobs.FanOutProgress = jobs.fan_out_progress(1).done  # E
wrong_store: UUID = current_store_id()  # E

# Operators.
assert_type(control.retry_jobs([1, 2], at=NOW, using="operator"), list[control.ActionResult[int]])
assert_type(control.cancel_jobs({1}), list[control.ActionResult[int]])
assert_type(control.discard_jobs(number for number in range(3)), list[control.ActionResult[int]])
assert_type(control.change_jobs([1], priority=-5, queue="mail"), list[control.ActionResult[int]])
assert_type(control.cancel_jobs(handle), list[control.ActionResult[int]])
assert_type(control.cancel_jobs("a public id"), list[control.ActionResult[Any]])
assert_type(get_job("a public id"), jobs.JobRecord)
assert_type(control.run_again(handle, {"number": 7}), jobs.JobHandle)
assert_type(control.retry_jobs([handle, 5]), list[control.ActionResult[int]])
control.discard_jobs(5)
control.change_jobs(of_store.enqueue_many([]), priority=1)
for operated in control.cancel_jobs([handle.id]):
    assert_type((operated.id, operated.changed, operated.detail), tuple[int, bool, str])
control.pause(queue="mail")
control.pause(store_id=STORE, using="operator")
control.resume(task="typing-store")
control.run_cron_entry("nightly")
assert_type(control.pause_cron_entries(["nightly"], by="ann"), list[control.ActionResult[str]])
control.resume_cron_entries(["nightly"], using="operator")
assert_type(control.override_cron_entries(["nightly"], "0 9 * * 1", by="ann"), list[control.ActionResult[str]])
control.override_cron_entries(["nightly"], None, using="operator")
scheduled = schedule(system.call(), "0 9 * * 1", timezone="Asia/Tokyo", key="weekly", catch_up=timedelta(hours=1))
schedule(
    of_store.call(STORE, TODAY), every=timedelta(seconds=10), key="often", jitter=timedelta(seconds=3), overlap=False
)
assert_type((scheduled.id, scheduled.next_at), tuple[int, datetime])
assert_type(control.pause_schedules([scheduled, 5, "weekly"], by="ann"), list[control.ActionResult[int | str]])
control.resume_schedules(scheduled)
control.delete_schedules("weekly", using="operator")
assert_type(control.run_schedule("weekly", by="ann"), jobs.JobHandle)
control.limit(queue="mail", max_concurrency=4, rate=0.5)
control.limit(queue="mail", rate="100/m")
control.limit(task="typing-limits", key=str(STORE), max_concurrency=None)
control.limit(store_id=str(STORE), lift=True)

control.run_again(None, {})  # E
control.retry_jobs([1.5])  # E
control.retry_jobs([1], at=TODAY)  # E
control.cancel_jobs(None)  # E
control.discard_jobs([1], reason="over")  # E
control.change_jobs([1], priority="high")  # E
wrong_result: list[control.ActionResult[str]] = control.skip_messages([1])  # E
control.pause("mail")  # E
control.resume(queue=1)  # E
control.run_cron_entry(1)  # E
control.pause_cron_entries([1])  # E
control.resume_cron_entries(1)  # E
control.override_cron_entries(["nightly"])  # E
schedule(system, "0 9 * * 1", key="weekly")  # E
control.pause_schedules(1.5)  # E
control.resume_schedules(None)  # E
control.delete_schedules()  # E
control.run_schedule(["weekly"])  # E
control.limit(queue="mail", max_concurrency="4")  # E
control.limit(queue="mail", rate=timedelta(minutes=1))  # E

# Messages.
assert_type(emit("rn::nats:::orders", aggregate_id="42", event="order.created", payload={"id": 42}), UUID)
emit("rn::nats:::orders", event="order.created", payload=[STORE, TODAY], headers={"Priority": "low"})
draft = Draft(aggregate_type="rn::nats:::orders", event="order.created", payload=None, aggregate_id="42")
assert_type(emit_many(draft for _ in range(3)), list[UUID])
assert_type(control.retry_messages([1]), list[control.ActionResult[int]])
assert_type(control.skip_messages(iter([1]), using="operator"), list[control.ActionResult[int]])
assert_type(control.unpark([("rn::nats:::orders", "42")]), list[control.ActionResult[tuple[str, str]]])
for unparked in control.unpark(aggregate_type="rn::nats:::orders"):
    assert_type((unparked.id, unparked.changed), tuple[tuple[str, str], bool])
control.pause_destination("rn::nats:::orders")
control.resume_destination("rn::nats:::orders", using="operator")
criteria = control.MessageCriteria(aggregate_type="rn::nats:::orders", since=NOW, statuses=("failed",))
replayed = control.replay_messages(criteria, requested_by="me", reason="lost", dry_run=True)
assert_type(replayed, control.Replayed)
assert_type(replayed.refused, tuple[control.ActionResult[int], ...])
control.replay_messages(control.MessageCriteria(ids=(1, 2)))

emit("rn::nats:::orders", payload={})  # E
emit("rn::nats:::orders", event="order.created", payload={}, aggregate_id=42)  # E
emit("rn::nats:::orders", event="order.created", payload={}, headers={"Priority": 1})  # E
Draft("rn::nats:::orders", "order.created", {})  # E
Draft(aggregate_type="rn::nats:::orders", payload={})  # E
emit_many([{"event": "order.created"}])  # E
control.retry_messages(["1"])  # E
control.skip_messages(1)  # E
wrong_id: list[control.ActionResult[tuple[str, str]]] = control.retry_jobs([1])  # E
control.unpark(["rn::nats:::orders"])  # E
wrong_aggregate: list[control.ActionResult[int]] = control.unpark([("rn::nats:::orders", "42")])  # E
control.pause_destination(1)  # E
control.resume_destination("rn::nats:::orders", "operator")  # E
control.MessageCriteria(ids=[1])  # E
control.MessageCriteria(since=TODAY)  # E
control.replay_messages([1])  # E
wrong_replay: control.Replayed = control.replay_messages(control.MessageCriteria(ids=(1,))).messages  # E

# Isolation.
constraints: list[BaseConstraint] = [
    access.StoreIsolation(field="store", name="isolation", web=["SELECT"], worker={"SELECT": [], "UPDATE": ["name"]}),
    access.MembershipIsolation(field="store", user_field="user", name="members"),
    access.SystemScope(name="system", web=(), worker={"SELECT": ["id"], "DELETE": []}),
    access.SameStoreForeignKey(field="customer", name="same_store", store_field="store", to_store_field="owner"),
    access.SameStoreForeignKey(field="customer", name="same_store", on_delete="SET NULL"),
    access.DatabaseForeignKey(field="user", on_delete="CASCADE", name="of_user"),
]


@tenancy.without_store
def sign_in(request: HttpRequest, *, following: str = "") -> HttpResponse:
    return HttpResponse(following)


assert_type(sign_in(HttpRequest(), following="/"), HttpResponse)
assert_type(tenancy.stores_of(AnonymousUser()), tuple[Any, ...])
assert_type(tenancy.create_store(name="Ginza"), Any)
tenancy.create_store("Ginza")  # E


class ByName(tenancy.SubdomainResolver):
    def store_of(self, name: str) -> UUID | None:
        return STORE if name == "ginza" else None


class Fixed:
    def resolve(self, request: HttpRequest) -> UUID | None:
        return STORE

    def allowed(self, request: HttpRequest, store: UUID) -> bool:
        return True


resolvers: list[tenancy.StoreResolver] = [ByName(), Fixed()]


def give_back(connection: Connection[tuple[Any, ...]]) -> None:
    tenancy.reset_store(connection)


access.StoreIsolation(name=1)  # E
access.StoreIsolation(field="store", name="isolation", web=["TRUNCATE"])  # E
access.MembershipIsolation(field="store", name="members")  # E
wrong_scope: access.StoreIsolation = access.SystemScope(name="system")  # E
access.SystemScope(name="system", worker={"SELEKT": []})  # E
access.SameStoreForeignKey(name="same_store")  # E
access.DatabaseForeignKey(field="user", on_delete="DELETE", name="of_user")  # E
tenancy.without_store(1)  # E
tenancy.stores_of("me")  # E
tenancy.reset_store("default")  # E


class WithoutAllowed:
    def resolve(self, request: HttpRequest) -> UUID | None:
        return STORE


wrong_resolver: tenancy.StoreResolver = WithoutAllowed()  # E
tenancy.SubdomainResolver().store_of(5)  # E


# Migrations.
def fill(apps: Any, schema_editor: Any, store_id: UUID) -> None: ...


USERS = access.SystemScope(name="users")


class Migration(operations.LocksBriefly):
    atomic = False
    locks_ms = 400
    operations = [  # noqa: RUF012 - as Django's documentation writes it
        operations.RunForEachStore(fill, operations.RunForEachStore.noop, elidable=True),
        operations.DropForeignKey("booking", ["customer_id"], to="customer", to_columns=["id"]),
        operations.ProtectModel("auth.User", USERS, instead_of=access.SystemScope(name="users", web=())),
        operations.ReleaseModel("auth.User", USERS),
        operations.InstallFanOutFunction(),
        operations.FillStore("crm.Activity", "organization", through="contact"),
        operations.BackfillStore("crm.Activity", "organization", through="contact", parent_field="account", batch=100),
        operations.RequireStore("crm.Activity", "organization"),
        operations.StopFillingStore("crm.Activity", "organization", through="contact"),
    ]


def forget(apps: Any, schema_editor: Any) -> None: ...


operations.RunForEachStore(forget)  # E
operations.DropForeignKey("booking")  # E
operations.ProtectModel("auth.User", "isolation")  # E
operations.ReleaseModel("auth.User")  # E
wrong_operation: operations.ReleaseModel = operations.InstallFanOutFunction()  # E
operations.LocksBriefly("0001_initial")  # E
operations.FillStore("crm.Activity", "organization")  # E
operations.BackfillStore("crm.Activity", "organization", "contact")  # E
operations.RequireStore("crm.Activity")  # E
operations.StopFillingStore("crm.Activity", through="contact")  # E


# Rows, for reading.
def read(store_model: type[Model]) -> None:
    job = models.Job.objects.get(pk=handle.id)
    assert_type((job.task, job.store_id, job.run_at, job.attempts), tuple[str, Any | None, datetime, int])
    assert_type((job.finished_at, job.job_key), tuple[datetime | None, str | None])
    assert_type([error.code for error in models.JobError.objects.filter(job_id=job.id)], list[str])
    assert_type(models.JobResult.objects.get().expires_at, datetime)
    assert_type(models.Limit.objects.get(kind=models.Limit.Kind.QUEUE).max_concurrency, int | None)
    assert_type(models.Process.objects.get().heartbeat_at, datetime)
    assert_type(models.Dashboard.objects.get().hostname, str)
    assert_type(models.FanOutRecord.objects.get().inserted, int)
    assert_type(models.FollowUp.objects.get().remaining, int)
    assert_type(models.FlowRecord.objects.get().key, str | None)
    assert_type(models.FlowMember.objects.get().outcome, str | None)
    assert_type(models.FlowEdge.objects.get().after_id, int)
    assert_type(models.JobChange.objects.get().became, str)
    assert_type(models.OrderedKey.objects.get().job_id, int)
    assert_type(models.OrderedJob.objects.get().run_at, datetime)
    assert_type(models.SupersededRun.objects.get().lease, int)
    assert_type(models.JobProgress.objects.get().total, int | None)
    assert_type(models.JobStep.objects.get().position, int | None)
    assert_type(models.CronEntryState.objects.get().last_tick_at, datetime | None)
    assert_type(models.CronTick.objects.get().tick_at, datetime)
    assert_type(models.Schedule.objects.get().every, timedelta | None)
    assert_type(models.ScheduleTick.objects.get().job_id, int | None)
    assert_type(models.TaskMinute.objects.get().duration_s, float)
    assert_type(models.QueueMinute.objects.get().exact, bool)
    message = models.Message.objects.get(message_id=STORE)
    assert_type((message.message_id, message.event, message.retry_at), tuple[UUID, str, datetime | None])
    assert_type(models.BlockedAggregate.objects.get().head_id, int)
    assert_type(models.RelayPartition.objects.get().owner, int | None)
    assert_type(models.DestinationState.objects.get().paused, bool)
    assert_type(models.Replay.objects.get().requested_by, str)
    assert_type(models.InboxMessage.objects.get().job_id, int | None)
    testing.assert_isolated(store_model, roles=["web"], stores=[STORE], field="store")


models.Job().attempts.upper()  # E
models.JobError().code + 1  # E
models.JobResult().attempts.upper()  # E
models.Limit().max_concurrency + 1  # E
models.Process().pid.upper()  # E
models.Dashboard().hostname + 1  # E
models.FanOutRecord().label + 1  # E
models.FollowUp().remaining.upper()  # E
models.FlowRecord().name + 1  # E
models.FlowMember().task + 1  # E
models.FlowEdge().after_id.upper()  # E
models.JobChange().became + 1  # E
models.OrderedKey().job_id.upper()  # E
models.OrderedJob().run_at + 1  # E
models.SupersededRun().lease.upper()  # E
models.JobProgress().done.upper()  # E
models.JobStep().name + 1  # E
models.CronEntryState().last_tick_at.isoformat()  # E
models.CronTick().entry + 1  # E
models.Schedule().next_at + 1  # E
models.ScheduleTick().number.upper()  # E
models.TaskMinute().failed.upper()  # E
models.QueueMinute().queue + 1  # E
models.Message().event + 1  # E
models.BlockedAggregate().head_id.upper()  # E
models.RelayPartition().owner + 1  # E
models.DestinationState().outage_since.isoformat()  # E
models.Replay().requested_by + 1  # E
models.InboxMessage().store_id.hex.upper()  # E

# Tests of hosts.
with testing.as_role("web"), testing.as_store(STORE):
    assert_type(testing.assert_enqueued(of_store, count=1, store_id=STORE, day=TODAY), list[int])
    drained = testing.drain_jobs(queues=["mail"], now=NOW, limit=5, raise_errors=False)
    assert_type(drained, list[testing.DrainedJob])
    assert_type(drained[0].store_id, Any | None)
    sent = testing.drain_outbox(limit=5)
    assert_type(sent, list[testing.DrainedMessage])
    assert_type(sent[0].payload, str)

testing.as_role(1)  # E
testing.as_store(5.5)  # E
testing.assert_enqueued("typing-store")  # E
testing.assert_isolated(Model(), roles="web")  # E
with testing.run_at_once(raise_errors=False, limit=5) as at_once_runs:
    assert_type(at_once_runs, list[testing.DrainedJob])
testing.run_at_once(5)  # E
testing.drain_jobs(5)  # E
testing.drain_outbox(limit="5")  # E
wrong_job: list[testing.DrainedJob] = testing.drain_outbox()  # E
wrong_drained: list[testing.DrainedMessage] = testing.drain_jobs()  # E
testing.perform_job(of_store, day=TODAY)  # E


@backend_task
def of_django(number: int) -> str:
    return str(number)


@backend_task(max_attempts=5, timeout=timedelta(minutes=1), queue_name="mail")
def of_django_with_options(number: int) -> str:
    return str(number)


of_django.using(at_most_once=True).enqueue(1)
assert_type(wait(of_django.enqueue(1), timedelta(seconds=1)), Any)
waited: Coroutine[Any, Any, Any] = await_result(of_django.enqueue(1), 0.5)
assert_type(of_django.using(max_attempts=3, keep_result=timedelta(hours=1)).enqueue(number=1).return_value, str)
of_django_with_options.using(job_key="{number}", run_after=datetime.now(UTC)).using(backend="other").enqueue(number=1)
schedule(call(of_django, number=1), every=timedelta(hours=1), key="django")
control.cancel_jobs([of_django.enqueue(1), handle])

call(of_django, "one")  # E
schedule(of_django.call(1), every=timedelta(hours=1), key="django")  # E
backend_task(max_atempts=5)  # E
backend_task(timeout=5)  # E
of_django.enqueue("one")  # E
of_django.using(max_atempts=5)  # E
of_django.using(max_attempts="5")  # E
of_django.using(at_most_once="yes")  # E
of_django.using(max_attempts=5).enqueue("one")  # E

wait(system.enqueue(), 5)  # E
await_result("an-id", 5)  # E
SalonJobsBackend("default")  # E
AtOnceBackend("default")  # E


# Signals.
def on_signal(sender: jobs.Task[..., Any], **named: Any) -> None: ...


for signal in (signals.job_enqueued, signals.job_started, signals.job_finished):
    signal.connect(on_signal, sender=of_store)

signals.job_enqueued.connect("receiver")  # E
signals.job_started.connect(print, sender_id=1)  # E
signals.job_finished.send(job=1)  # E


# Brokers.
class Printer(publisher.Publisher):
    service = "printer"

    def check(self, message: publisher.OutgoingMessage) -> None: ...

    def publish(
        self, messages: Sequence[publisher.OutgoingMessage], *, should_continue: Callable[[], bool]
    ) -> list[publisher.PublishFailure | None]:
        try:
            return publisher.publish_one_by_one(messages, self._publish, should_continue=should_continue)
        except publisher.PublishBroken as broken:
            return broken.answers

    def _publish(self, message: publisher.OutgoingMessage) -> publisher.PublishFailure | None:
        assert_type((message.message_id, message.store_id), tuple[UUID, Any | None])
        if not message.aggregate_id:
            return publisher.NOT_SENT
        empty = publisher.PublishFailure(publisher.Verdict.REFUSED, "PRINTER.EMPTY", "no payload")
        return None if message.payload else empty

    def ping(self) -> None: ...


class Pen:
    def ping(self) -> None: ...

    def close(self) -> None: ...


class Plotter(publisher.ClientPublisher[Pen]):
    service = "plotter"

    def check(self, message: publisher.OutgoingMessage) -> None: ...

    def connect(self) -> Pen:
        return Pen()

    def publish(
        self, messages: Sequence[publisher.OutgoingMessage], *, should_continue: Callable[[], bool]
    ) -> list[publisher.PublishFailure | None]:
        assert_type(self.client.get(), Pen)
        return [None for _ in messages]


class Scanner(source.Source):
    service = "scanner"

    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[source.Delivery]:
        read = source.read_delivery(
            {}, b"{}", kind="header", message_id="1", headers=dict[str, str], count=1, raw="{}", handle=1
        )
        fault = source.Delivery(count=1, raw="", handle=None, fault="no body")
        envelope = source.Envelope(message_id=str(STORE), event=self.destination.resource, payload="{}")
        return [read, fault, source.Delivery(count=1, raw="{}", handle=2, envelope=envelope)]

    def acknowledge(self, deliveries: Sequence[source.Delivery]) -> None: ...

    def extend(self, deliveries: Sequence[source.Delivery], *, visibility: timedelta) -> None: ...

    def give_back(self, deliveries: Sequence[source.Delivery], *, after: timedelta) -> None: ...


publisher.Publisher()  # E
publisher.publish_one_by_one([], print)  # E
publisher.ClientPublisher()  # E
publisher.PublishFailure("retry")  # E
wrong_verdict: publisher.Verdict = "retry"  # E
wrong_answer: publisher.Verdict = publisher.NOT_SENT  # E
publisher.PublishBroken()  # E
wrong_message: publisher.OutgoingMessage = wrong_answer  # E
source.Source("scans", consumer="mine")  # E
source.Delivery(count="1", raw="", handle=None)  # E
source.Envelope(message_id=uuid4(), event="order.created", payload="{}")  # E
source.read_delivery({}, {}, kind="header", message_id="1", headers=dict, count=1, raw="{}", handle=1)  # E


# Settings.
class Polite(TenantMiddleware):
    def refuse(self, request: HttpRequest, refused: StoreRefused) -> HttpResponse:
        return HttpResponse(str(refused), status=refused.status)


Polite(lambda _: HttpResponse()).refuse(HttpRequest(), StoreRefused("no such store", status=404))
assert_type(JobTablesRouter().allow_migrate("default", "salon_jobs"), bool | None)
SalonJobsBackend("default", {"OPTIONS": {"max_attempts": 3}})
AtOnceBackend("default", {})

TenantMiddleware("view")  # E
StoreRefused("no such store", status="404")  # E
JobTablesRouter().allow_migrate(1, "salon_jobs")  # E

# Stores in the admin, in forms and without rows.
access.ManyToManyIsolation(field="tags", name="tags_isolation", web=["SELECT"])
with tenancy.expect_no_rows():
    assert_type(tenancy.violation_of(ValueError()), ValidationError | None)
with tenancy.form_errors(Form(), using="default"):
    pass
assert_type(staff.StoreAdminSite(name="staff").name, str)


class Counter(staff.StoreAdminSiteMixin):
    site_header = "Counter"


class SalesAdmin(staff.StoreAdminMixin):
    list_display = ("day",)


assert_type(StoreAdminConfig.default_site, str)

access.ManyToManyIsolation(name="tags_isolation")  # E
tenancy.expect_no_rows("customer")  # E
tenancy.violation_of("new row violates row-level security")  # E
tenancy.form_errors()  # E
admin.register(staff.StoreAdminSite(name="staff"))
staff.StoreAdminSite(5)  # E
admin.register(staff.StoreAdminSite)  # E
staff.StoreAdminSiteMixin(5)  # E
staff.StoreAdminMixin()  # E
StoreAdminConfig()  # E
