"""Right uses of the public API: both checkers, in strict mode, must accept every line. Never imported."""

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
    Snooze,
    aemit,
    afan_out,
    aschedule,
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
    schedule,
    store_task,
    task,
    tenant_context,
)
from salon_jobs.access import (
    DatabaseForeignKey,
    ManyToManyIsolation,
    MembershipIsolation,
    SameStoreForeignKey,
    StoreIsolation,
    SystemScope,
)
from salon_jobs.access.operations import (
    BackfillStore,
    DropForeignKey,
    FillStore,
    InstallFanOutFunction,
    LocksBriefly,
    ProtectModel,
    ReleaseModel,
    RequireStore,
    RunForEachStore,
    StopFillingStore,
)
from salon_jobs.backend import SalonJobsBackend, await_result, wait
from salon_jobs.backend import task as backend_task
from salon_jobs.brokers.publisher import (
    NOT_SENT,
    ClientPublisher,
    OutgoingMessage,
    Publisher,
    PublishFailure,
    Verdict,
    publish_one_by_one,
)
from salon_jobs.brokers.source import Delivery, Envelope, Source, read_delivery
from salon_jobs.control import (
    ActionResult,
    MessageCriteria,
    Replayed,
    cancel_jobs,
    change_jobs,
    delete_schedules,
    discard_jobs,
    limit,
    override_cron_entries,
    pause,
    pause_cron_entries,
    pause_destination,
    pause_schedules,
    replay_messages,
    resume,
    resume_cron_entries,
    resume_destination,
    resume_schedules,
    retry_jobs,
    retry_messages,
    run_again,
    run_cron_entry,
    run_schedule,
    skip_messages,
    unpark,
)
from salon_jobs.core.errors import StoreRefused
from salon_jobs.db.router import JobTablesRouter
from salon_jobs.jobs import (
    AttemptError,
    ChunkTask,
    EnqueueAction,
    FanOut,
    FanOutProgress,
    FanOutResult,
    Flow,
    JobHandle,
    JobRecord,
    JobState,
    Member,
    Progress,
    RunningFlow,
    Task,
    fan_out_progress,
)
from salon_jobs.models import (
    BlockedAggregate,
    CronEntryState,
    CronTick,
    Dashboard,
    DestinationState,
    FanOutRecord,
    FlowEdge,
    FlowMember,
    FlowRecord,
    FollowUp,
    InboxMessage,
    Job,
    JobError,
    JobProgress,
    JobResult,
    JobStep,
    Limit,
    Message,
    OrderedJob,
    OrderedKey,
    Process,
    QueueMinute,
    RelayPartition,
    Replay,
    Schedule,
    ScheduleTick,
    SupersededRun,
    TaskMinute,
)
from salon_jobs.outbox import Draft
from salon_jobs.schedules.stored import ScheduleHandle
from salon_jobs.signals import job_enqueued, job_finished, job_started
from salon_jobs.staff import StoreAdminMixin, StoreAdminSite, StoreAdminSiteMixin
from salon_jobs.staff.apps import StoreAdminConfig
from salon_jobs.tenancy import (
    StoreResolver,
    SubdomainResolver,
    carry_store,
    expect_no_rows,
    form_errors,
    reset_store,
    stores_of,
    violation_of,
    without_store,
)
from salon_jobs.tenancy.request import TenantMiddleware
from salon_jobs.testing import (
    DrainedJob,
    DrainedMessage,
    as_role,
    as_store,
    assert_enqueued,
    assert_isolated,
    drain_jobs,
    drain_outbox,
    perform_job,
)


@task(name="typing-system", max_attempts=3)
def system(reason: str = "cron") -> int:
    """Return a number."""
    return len(reason)


@task(name="typing-once", at_most_once=True, discard_on=(LookupError,))
def once() -> None: ...


def days_after(last: date | None) -> list[date]:
    """Return one day."""
    return [TODAY] if last is None else []


@store_task(name="typing-store", job_key="k:{store_id}:{day}", job_key_mode="preserve_run_at")
def of_store(store_id: UUID, day: date, note: str | None = None) -> None:
    """Use the names meant for handlers."""
    job = current_job()
    assert_type(job.store_id, Any | None)
    assert_type(job.attempt, int)
    assert_type(job.step("parse", date.fromisoformat, "2026-05-05"), date)
    assert_type(job.step("round", round, 2.5, ndigits=None), int)
    assert_type(list(job.cursor("days", [day])), list[date])
    assert_type(list(job.cursor("more", days_after)), list[date])
    if note == "later":
        raise Snooze(timedelta(minutes=5))
    raise Discard(f"{store_id} {day}")


@store_task(name="typing-limits", max_concurrency=8, concurrency_key="{store_id}", key_concurrency=2)
def limited(store_id: UUID) -> None:
    """Do nothing."""


@store_task(name="typing-ordered", concurrency_key="{store_id}", ordered=True)
def ordered(store_id: UUID) -> None:
    """Do nothing."""


@task(name="typing-ordered-skip", concurrency_key="all", ordered="skip_failed")
def ordered_skip() -> None:
    """Do nothing."""


@store_task(name="typing-async", atomic=False)
async def in_coroutine(store_id: UUID, day: date) -> int:
    """Return a number, once awaited."""
    assert_type(await current_job().astep("ask", without_options.function), int)
    return await current_job().astep("year", round, day.year)


@task
def without_a_name(day: date) -> int:
    """Return a number."""
    return day.year


@task()
async def without_options() -> int:
    """Return a number, once awaited."""
    return 1


@dataclass
class Sale:
    """Payload of one job of a chunk."""

    day: date
    amount: int = 0


@store_task(name="typing-chunk", chunk=100, queue="sales", job_key="sale:{store_id}:{day}")
def in_chunks(store_id: UUID, sales: list[Sale]) -> int:
    """Return a number."""
    return sum(sale.amount for sale in sales)


@store_task
def of_store_without_a_name(store_id: UUID, day: date) -> int:
    """Return a number."""
    return day.year


@store_task(atomic=False, queue="mail")
async def of_store_without_a_transaction(store_id: UUID) -> int:
    """Return a number, once awaited."""
    return 1


async def await_it() -> None:
    """Await the task's function, and enqueue from a coroutine."""
    assert_type(await in_coroutine(STORE, TODAY), int)
    assert_type(await aschedule(system.call(), every=timedelta(hours=1), key="hourly"), ScheduleHandle)
    assert_type(await of_store.aenqueue(STORE, TODAY, note="x"), JobHandle)
    assert_type(await of_store.using(priority=5).aenqueue(store_id=STORE, day=TODAY), JobHandle)
    assert_type(await of_store.aenqueue_many([of_store.call(STORE, TODAY)]), list[JobHandle])
    assert_type(await of_store.using(priority=5).aenqueue_many(iter([of_store.call(STORE, TODAY)])), list[JobHandle])
    assert_type(await afan_out(of_store, FanOut(label="a"), day=TODAY), FanOutResult)
    assert_type(await aemit("rn::nats:::orders", aggregate_id="42", event="order.created", payload={"id": 42}), UUID)


STORE = uuid4()
TODAY = date(2026, 5, 5)
handle = of_store.enqueue(store_id=STORE, day=TODAY)
assert_type(handle, JobHandle)
assert_type(handle.action, EnqueueAction)
assert_type(handle.id, int)
assert_type(handle.public_id, UUID | None)
assert_type(handle.status() is JobState.QUEUED, bool)
assert_type(handle.refresh(), JobRecord)
assert_type(get_job(handle.id), JobRecord)
assert_type((handle.wait(0.5), handle.wait(timedelta(seconds=1))), tuple[Any, Any])
assert_type([error.worker_id for error in get_job(1, using="operator").errors], list[int | None])
an_error: AttemptError = handle.refresh().errors[0]
a_progress: Progress | None = handle.refresh().progress
of_store.enqueue(STORE, TODAY, note="x")
of_store.using(run_at=datetime.now(UTC), priority=-5, queue="mail", job_key="mine").enqueue(store_id=STORE, day=TODAY)
assert_type(of_store.enqueue_many(of_store.call(store_id=STORE, day=TODAY) for _ in range(3)), list[JobHandle])
of_store.using(job_key_mode="unsafe_dedupe").enqueue_many([of_store.call(STORE, TODAY)])
of_store.enqueue_many([of_store.call(STORE, TODAY)], then=system.call())
of_store.using(run_in=timedelta(minutes=5)).enqueue(STORE, TODAY)
limited.using(concurrency_key="mine").enqueue(store_id=STORE)
system.enqueue()
assert_type(without_a_name.enqueue(day=TODAY), JobHandle)
assert_type(without_a_name(TODAY), int)
assert_type(perform_job(without_options), int)
assert_type(fan_out(of_store_without_a_name, day=TODAY), FanOutResult)
assert_type(of_store_without_a_name(STORE, TODAY), int)
of_store_without_a_transaction.enqueue(store_id=STORE)
in_coroutine.enqueue(store_id=STORE, day=TODAY)
assert_type(fan_out(in_coroutine, day=TODAY), FanOutResult)
assert_type(perform_job(in_coroutine, store_id=STORE, day=TODAY), int)
assert_type(perform_job(system, reason="test"), int)
assert_type(system("called as the function it is"), int)
with flow("order", key="7") as order:
    assert_type(order, Flow)
    first = order.add(system.call(), priority=1)
    assert_type(order.add(of_store.call(STORE, TODAY), after=[first], when="failed"), Member)
    assert_type((first.id, first.outcome), tuple[int, str | None])
assert_type(get_flow(order.id or 0).members(), list[Member])


def in_a_flow() -> None:
    """Use what a handler knows of its flow."""
    with current_job().flow as own:
        assert_type(own, RunningFlow)
        assert_type(own.add(system.call(), after=own.me), Member)
    assert_type(own.result_of(system), int)
    assert_type(own.results_of(in_coroutine), list[int])


assert_type(enqueue_job("typing-system", {"reason": "cron"}, priority=1), JobHandle)
assert_type(fan_out(of_store, day=TODAY), FanOutResult)
assert_type(in_chunks, ChunkTask[Sale, int])
assert_type(in_chunks.enqueue(STORE, Sale(TODAY)), JobHandle)
assert_type(in_chunks.using(priority=1).enqueue(STORE, Sale(TODAY, 5)), JobHandle)
assert_type(in_chunks.enqueue_many(in_chunks.call(STORE, Sale(TODAY, n)) for n in range(3)), list[JobHandle])
assert_type(fan_out(in_chunks, day=TODAY), FanOutResult)
assert_type(in_chunks(STORE, [Sale(TODAY)]), int)
fanned = fan_out(of_store.using(priority=5), FanOut(jitter=timedelta(minutes=5), exclude=[STORE], label="a"), day=TODAY)
fan_out(of_store, FanOut(then=system.call()), day=TODAY)
assert_type(fan_out_progress(fanned.id), FanOutProgress)
cron("0 18 * * *", system, payload=lambda tick: {"reason": tick.isoformat()}, timezone="Asia/Tokyo")
cron("5 * * * *", system, payload={"reason": "cron"}, backfill=timedelta(hours=6), name="hourly")
with tenant_context(STORE):
    assert_type(current_store_id(), Any | None)
with tenant_context(str(STORE), atomic=False):
    pass


def divided(number: int, *, by: int) -> int:
    """Return a number."""
    return number // by


async def later(number: int) -> int:
    """Return a number, once awaited."""
    return number


async def in_a_coroutine() -> int:
    """Open a context, and carry a coroutine function."""
    async with tenant_context(STORE):
        return await carry_store(later, atomic=False)(1)


with tenant_context(STORE, scope="session", atomic=False), tenant_context(STORE, switch=True, using="default"):
    assert_type(carry_store(divided)(7, by=2), int)

MINUTE = timedelta(minutes=1)
NOW = datetime.now(UTC)


@task(
    name="typing-options",
    backoff=Backoff(base=MINUTE, factor=3, cap=MINUTE * 60, jitter=0.2),
    timeout=MINUTE,
    retry_on=(OSError, TimeoutError),
    discard_on=(LookupError,),
    wait_timeout=MINUTE,
    wait_overtime=MINUTE,
    waiting_shortens_timeout=True,
)
def with_options(at: datetime) -> None:
    """Do nothing."""


@task(name="typing-ping")
def ping() -> int:
    """Return a number."""
    return 1


def every_task(tasks: list[Task[..., Any]], of_no_argument: Task[[], int]) -> None:
    """Use tasks as values."""
    assert_type(of_no_argument(), int)
    assert_type(of_no_argument.enqueue(), JobHandle)
    assert_type(tasks[0].name, str)


every_task([with_options, of_store, in_coroutine], ping)
assert_type(handle.action is EnqueueAction.INSERTED, bool)
assert_type(fanned.inserted + fanned.kept + fanned.paused, int)

# Operators.
assert_type(retry_jobs([1, 2], at=NOW, using="operator"), list[ActionResult[int]])
assert_type(cancel_jobs({1}), list[ActionResult[int]])
assert_type(discard_jobs(number for number in range(3)), list[ActionResult[int]])
assert_type(change_jobs([1], priority=-5, queue="mail"), list[ActionResult[int]])
assert_type(cancel_jobs(handle), list[ActionResult[int]])
assert_type(run_again(handle, {"number": 7}), JobHandle)
assert_type(retry_jobs([handle, 5]), list[ActionResult[int]])
discard_jobs(5)
change_jobs(of_store.enqueue_many([]), priority=1)
for operated in cancel_jobs([handle.id]):
    assert_type((operated.id, operated.changed, operated.detail), tuple[int, bool, str])
pause(queue="mail")
pause(store_id=STORE, using="operator")
resume(task="typing-store")
run_cron_entry("nightly")
assert_type(pause_cron_entries(["nightly"], by="ann"), list[ActionResult[str]])
resume_cron_entries(["nightly"], using="operator")
assert_type(override_cron_entries(["nightly"], "0 9 * * 1", by="ann"), list[ActionResult[str]])
override_cron_entries(["nightly"], None, using="operator")
scheduled = schedule(system.call(), "0 9 * * 1", timezone="Asia/Tokyo", key="weekly", catch_up=timedelta(hours=1))
schedule(
    of_store.call(STORE, TODAY), every=timedelta(seconds=10), key="often", jitter=timedelta(seconds=3), overlap=False
)
assert_type((scheduled.id, scheduled.next_at), tuple[int, datetime])
assert_type(pause_schedules([scheduled, 5, "weekly"], by="ann"), list[ActionResult[int | str]])
resume_schedules(scheduled)
delete_schedules("weekly", using="operator")
assert_type(run_schedule("weekly", by="ann"), JobHandle)
limit(queue="mail", max_concurrency=4, rate=0.5)
limit(queue="mail", rate="100/m")
limit(task="typing-limits", key=str(STORE), max_concurrency=None)
limit(store_id=str(STORE), lift=True)

# Messages.
assert_type(emit("rn::nats:::orders", aggregate_id="42", event="order.created", payload={"id": 42}), UUID)
emit("rn::nats:::orders", event="order.created", payload=[STORE, TODAY], headers={"Priority": "low"})
draft = Draft(aggregate_type="rn::nats:::orders", event="order.created", payload=None, aggregate_id="42")
assert_type(emit_many(draft for _ in range(3)), list[UUID])
assert_type(retry_messages([1]), list[ActionResult[int]])
assert_type(skip_messages(iter([1]), using="operator"), list[ActionResult[int]])
assert_type(unpark([("rn::nats:::orders", "42")]), list[ActionResult[tuple[str, str]]])
for unparked in unpark(aggregate_type="rn::nats:::orders"):
    assert_type((unparked.id, unparked.changed), tuple[tuple[str, str], bool])
pause_destination("rn::nats:::orders")
resume_destination("rn::nats:::orders", using="operator")
criteria = MessageCriteria(aggregate_type="rn::nats:::orders", since=NOW, statuses=("failed",))
replayed = replay_messages(criteria, requested_by="me", reason="lost", dry_run=True)
assert_type(replayed, Replayed)
assert_type(replayed.refused, tuple[ActionResult[int], ...])
replay_messages(MessageCriteria(ids=(1, 2)))

# Isolation.
constraints: list[BaseConstraint] = [
    StoreIsolation(field="store", name="isolation", web=["SELECT"], worker={"SELECT": [], "UPDATE": ["name"]}),
    MembershipIsolation(field="store", user_field="user", name="members"),
    SystemScope(name="system", web=(), worker={"SELECT": ["id"], "DELETE": []}),
    SameStoreForeignKey(field="customer", name="same_store", store_field="store", to_store_field="owner"),
    SameStoreForeignKey(field="customer", name="same_store", on_delete="SET NULL"),
    DatabaseForeignKey(field="user", on_delete="CASCADE", name="of_user"),
]


@without_store
def sign_in(request: HttpRequest, *, following: str = "") -> HttpResponse:
    """Return a response."""
    return HttpResponse(following)


assert_type(sign_in(HttpRequest(), following="/"), HttpResponse)
assert_type(stores_of(AnonymousUser()), tuple[Any, ...])


class ByName(SubdomainResolver):
    """Resolver that finds a store by its name."""

    def store_of(self, name: str) -> UUID | None:
        """Return the store."""
        return STORE if name == "ginza" else None


class Fixed:
    """Resolver that gives every request the same store."""

    def resolve(self, request: HttpRequest) -> UUID | None:
        """Return the store."""
        return STORE

    def allowed(self, request: HttpRequest, store: UUID) -> bool:
        """Allow the store."""
        return True


resolvers: list[StoreResolver] = [ByName(), Fixed()]


def give_back(connection: Connection[tuple[Any, ...]]) -> None:
    """Reset a connection of a pool."""
    reset_store(connection)


# Migrations.
def fill(apps: Any, schema_editor: Any, store_id: UUID) -> None:
    """Change the rows of one store."""


class Migration(LocksBriefly):
    """Migration with every operation."""

    atomic = False
    locks_ms = 400
    operations = [  # noqa: RUF012 - as Django's documentation writes it
        RunForEachStore(fill, RunForEachStore.noop, elidable=True),
        DropForeignKey("booking", ["customer_id"], to="customer", to_columns=["id"]),
        ProtectModel("auth.User", SystemScope(name="users"), instead_of=SystemScope(name="users", web=())),
        ReleaseModel("auth.User", SystemScope(name="users")),
        InstallFanOutFunction(),
        FillStore("crm.Activity", "organization", through="contact"),
        BackfillStore("crm.Activity", "organization", through="contact", parent_field="account", batch=100),
        RequireStore("crm.Activity", "organization"),
        StopFillingStore("crm.Activity", "organization", through="contact"),
    ]


# Rows, for reading.
def read(store_model: type[Model]) -> None:
    """Read a column or two of each model."""
    job = Job.objects.get(pk=handle.id)
    assert_type((job.task, job.store_id, job.run_at, job.attempts), tuple[str, Any | None, datetime, int])
    assert_type((job.finished_at, job.job_key), tuple[datetime | None, str | None])
    assert_type([error.code for error in JobError.objects.filter(job_id=job.id)], list[str])
    assert_type(JobResult.objects.get().expires_at, datetime)
    assert_type(Limit.objects.get(kind=Limit.Kind.QUEUE).max_concurrency, int | None)
    assert_type(Process.objects.get().heartbeat_at, datetime)
    assert_type(Dashboard.objects.get().hostname, str)
    assert_type(FanOutRecord.objects.get().inserted, int)
    assert_type(FollowUp.objects.get().remaining, int)
    assert_type(FlowRecord.objects.get().key, str | None)
    assert_type(FlowMember.objects.get().outcome, str | None)
    assert_type(FlowEdge.objects.get().after_id, int)
    assert_type(OrderedKey.objects.get().job_id, int)
    assert_type(OrderedJob.objects.get().run_at, datetime)
    assert_type(SupersededRun.objects.get().lease, int)
    assert_type(JobProgress.objects.get().total, int | None)
    assert_type(JobStep.objects.get().position, int | None)
    assert_type(CronEntryState.objects.get().last_tick_at, datetime | None)
    assert_type(CronTick.objects.get().tick_at, datetime)
    assert_type(Schedule.objects.get().every, timedelta | None)
    assert_type(ScheduleTick.objects.get().job_id, int | None)
    assert_type(TaskMinute.objects.get().duration_s, float)
    assert_type(QueueMinute.objects.get().exact, bool)
    message = Message.objects.get(message_id=STORE)
    assert_type((message.message_id, message.event, message.retry_at), tuple[UUID, str, datetime | None])
    assert_type(BlockedAggregate.objects.get().head_id, int)
    assert_type(RelayPartition.objects.get().owner, int | None)
    assert_type(DestinationState.objects.get().paused, bool)
    assert_type(Replay.objects.get().requested_by, str)
    assert_type(InboxMessage.objects.get().job_id, int | None)
    assert_isolated(store_model, roles=["web"], stores=[STORE], field="store")


# Tests of hosts.
with as_role("web"), as_store(STORE):
    assert_type(assert_enqueued(of_store, count=1, store_id=STORE, day=TODAY), list[int])
    drained = drain_jobs(queues=["mail"], now=NOW, limit=5, raise_errors=False)
    assert_type(drained, list[DrainedJob])
    assert_type(drained[0].store_id, Any | None)
    sent = drain_outbox(limit=5)
    assert_type(sent, list[DrainedMessage])
    assert_type(sent[0].payload, str)


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


# Signals.
def on_signal(sender: Task[..., Any], **named: Any) -> None:
    """Receive any of them."""


for signal in (job_enqueued, job_started, job_finished):
    signal.connect(on_signal, sender=of_store)


# Brokers.
class Printer(Publisher):
    """Publisher that prints."""

    service = "printer"

    def check(self, message: OutgoingMessage) -> None:
        """Accept everything."""

    def publish(
        self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]
    ) -> list[PublishFailure | None]:
        """Print what has a payload."""
        return publish_one_by_one(messages, self._publish, should_continue=should_continue)

    def _publish(self, message: OutgoingMessage) -> PublishFailure | None:
        assert_type((message.message_id, message.store_id), tuple[UUID, Any | None])
        if not message.aggregate_id:
            return NOT_SENT
        return None if message.payload else PublishFailure(Verdict.REFUSED, "PRINTER.EMPTY", "no payload")

    def ping(self) -> None:
        """Answer."""


class Pen:
    """Client of a plotter."""

    def ping(self) -> None:
        """Answer."""

    def close(self) -> None:
        """Dry."""


class Plotter(ClientPublisher[Pen]):
    """Publisher through a client."""

    service = "plotter"

    def check(self, message: OutgoingMessage) -> None:
        """Accept everything."""

    def connect(self) -> Pen:
        """Take a pen."""
        return Pen()

    def publish(
        self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]
    ) -> list[PublishFailure | None]:
        """Plot nothing."""
        assert_type(self.client.get(), Pen)
        return [None for _ in messages]


class Scanner(Source):
    """Source that has nothing."""

    service = "scanner"

    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        """Receive one delivery."""
        read = read_delivery(
            {}, b"{}", kind="header", message_id="1", headers=dict[str, str], count=1, raw="{}", handle=1
        )
        fault = Delivery(count=1, raw="", handle=None, fault="no body")
        envelope = Envelope(message_id=str(STORE), event=self.destination.resource, payload="{}")
        return [read, fault, Delivery(count=1, raw="{}", handle=2, envelope=envelope)]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Forget them."""

    def extend(self, deliveries: Sequence[Delivery], *, visibility: timedelta) -> None:
        """Keep them."""

    def give_back(self, deliveries: Sequence[Delivery], *, after: timedelta) -> None:
        """Put them back."""


# Settings.
class Polite(TenantMiddleware):
    """Middleware with a page of its own."""

    def refuse(self, request: HttpRequest, refused: StoreRefused) -> HttpResponse:
        """Return the page."""
        return HttpResponse(str(refused), status=refused.status)


Polite(lambda _: HttpResponse()).refuse(HttpRequest(), StoreRefused("no such store", status=404))
assert_type(JobTablesRouter().allow_migrate("default", "salon_jobs"), bool | None)
SalonJobsBackend("default", {"OPTIONS": {"max_attempts": 3}})


# Stores in the admin, in forms and without rows.
ManyToManyIsolation(field="tags", name="tags_isolation", web=["SELECT"])
with expect_no_rows():
    assert_type(violation_of(ValueError()), ValidationError | None)
with form_errors(Form(), using="default"):
    pass
assert_type(StoreAdminSite(name="staff").name, str)


class Counter(StoreAdminSiteMixin):
    """Site of the counter."""

    site_header = "Counter"


class SalesAdmin(StoreAdminMixin):
    """Sales of the chosen store."""

    list_display = ("day",)


assert_type(StoreAdminConfig.default_site, str)
