"""Wrong uses of the public API: both checkers, in strict mode, must flag exactly the lines marked E. Never imported."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db.models import Model
from django.http import HttpRequest

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


@task(name="typing-system")
def system(reason: str = "cron") -> int:
    """Return a number."""
    return len(reason)


@store_task(name="typing-store")
def of_store(store_id: UUID, day: date) -> None:
    """Do nothing."""


@store_task(name="typing-async", atomic=False)
async def in_coroutine(store_id: UUID) -> int:
    """Return a number, once awaited."""
    return 1


@dataclass
class Sale:
    """Payload of one job of a chunk."""

    day: date


@store_task(name="typing-chunk", chunk=100)
def in_chunks(store_id: UUID, sales: list[Sale]) -> int:
    """Return a number."""
    return len(sales)


STORE = uuid4()
TODAY = date(2026, 5, 5)
in_chunks.enqueue(STORE)  # E
in_chunks.enqueue(STORE, TODAY)  # E
in_chunks.enqueue(TODAY, Sale(TODAY))  # E
in_chunks.call(STORE, [Sale(TODAY)])  # E
in_chunks(STORE, Sale(TODAY))  # E
wrong_chunk: ChunkTask[date, int] = in_chunks  # E
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


async def in_a_coroutine() -> None:
    """Enqueue wrongly from a coroutine."""
    await of_store.aenqueue(store_id=STORE)  # E
    await aschedule(system, "0 9 * * 1", key="weekly")  # E
    await of_store.using(priority=1).aenqueue(STORE, "2026-05-05")  # E
    await of_store.aenqueue_many([system.call()])  # E
    await system.using(priority=1).aenqueue_many([of_store.call(STORE, TODAY)])  # E
    await afan_out("typing-store", day=TODAY)  # E
    await aemit("rn::nats:::orders", payload={})  # E


system.enqueue(reason=1)  # E
in_coroutine.enqueue(store_id=1)  # E
in_coroutine(STORE) + 1  # E
enqueue_job(system, {})  # E
enqueue_job("typing-system", [])  # E
enqueue_job("typing-system", {}, prioritty=1)  # E
enqueue_job("typing-system", {}, run_at="soon")  # E
cron("0 18 * * *", print)  # E
cron("0 18 * * *", system, backfill=60)  # E
fan_out("typing-store", day=TODAY)  # E
fan_out(of_store, {"jitter": 5}, day=TODAY)  # E
FanOut(timedelta(minutes=5))  # E
FanOut(jitter=5)  # E
FanOut(then=system)  # E
FanOut(exclude=[1.5])  # E
fan_out_progress("1")  # E
tenant_context(5.5)  # E
tenant_context(uuid4(), scope="request")  # E
carry_store(current_job)(7)  # E
Snooze(5)  # E
current_job().id.hex()  # E
current_job().step("round", round, "a")  # E
current_job().step("parse", date.fromisoformat, "2026-05-05").upper()  # E
current_job().cursor("days", 5)  # E
system.enqueue() + 1  # E


@task
def without_a_name(day: date) -> None:
    """Do nothing."""


@store_task
def of_store_without_a_name(store_id: UUID) -> int:
    """Return a number."""
    return 1


without_a_name.enqueue()  # E
without_a_name.enqueue(day="2026-05-05")  # E
of_store_without_a_name.enqueue()  # E
of_store_without_a_name(STORE).upper()  # E
task("send-mail")  # E
store_task(name=5)  # E


@store_task(name="typing-mode", job_key_mode="always")  # E
def with_wrong_mode(store_id: UUID) -> None:
    """Do nothing."""


@task(name="typing-retry", retry_on=(int,))  # E
def with_wrong_retry() -> None:
    """Do nothing."""


@task(name="typing-discard", discard_on=[OSError])  # E
def with_wrong_discard() -> None:
    """Do nothing."""


@task(name="typing-limit", max_concurrency="4")  # E
def with_wrong_limit() -> None:
    """Do nothing."""


@task(name="typing-order", concurrency_key="a", ordered="always")  # E
def with_wrong_order() -> None:
    """Do nothing."""


@task(name="typing-key", key_concurency=4)  # E
def with_misspelt_limit() -> None:
    """Do nothing."""


def a_task(one: Task[[int], str]) -> None:
    """Use a task as a value."""
    one.enqueue("1")  # E
    one(1) + 1  # E
    a_task(one.using(priority=1))  # E


wrong_task: Task[[str], int] = of_store  # E
Backoff(base=5)  # E
Backoff(limit=timedelta(hours=1))  # E
Discard()  # E
system.enqueue().action + 1  # E
wrong_action: EnqueueAction = "inserted"  # E
wrong_state: JobState = "queued"  # E
get_job("1")  # E
flow("order", key=7)  # E
get_flow("1")  # E
flow("order").add(system.call(), when="done")  # E
Flow("order").add(system)  # E
wrong_member: Member = Flow("order").add(system.call()).id  # E
wrong_flow: RunningFlow = Flow("order")  # E
wrong_result: str = current_job().flow.result_of(system)  # E
wrong_record: JobRecord = system.enqueue()  # E
wrong_error: AttemptError = get_job(1).errors  # E
wrong_progress: Progress = get_job(1).progress  # E
wrong_handle: JobHandle = system.enqueue().id  # E
system.enqueue().wait("5")  # E
wrong_fan_out: FanOutResult = fan_out(of_store, day=TODAY).id  # E
wrong_progress: FanOutProgress = fan_out_progress(1).done  # E
wrong_store: UUID = current_store_id()  # E
run_again("1", {})  # E
retry_jobs(["1"])  # E
retry_jobs([1], at=TODAY)  # E
cancel_jobs("1")  # E
discard_jobs([1], reason="over")  # E
change_jobs([1], priority="high")  # E
wrong_result: list[ActionResult[str]] = skip_messages([1])  # E
pause("mail")  # E
resume(queue=1)  # E
run_cron_entry(1)  # E
pause_cron_entries([1])  # E
resume_cron_entries(1)  # E
override_cron_entries(["nightly"])  # E
schedule(system, "0 9 * * 1", key="weekly")  # E
pause_schedules(1.5)  # E
resume_schedules(None)  # E
delete_schedules()  # E
run_schedule(["weekly"])  # E
limit(queue="mail", max_concurrency="4")  # E
limit(queue="mail", rate=timedelta(minutes=1))  # E
emit("rn::nats:::orders", payload={})  # E
emit("rn::nats:::orders", event="order.created", payload={}, aggregate_id=42)  # E
emit("rn::nats:::orders", event="order.created", payload={}, headers={"Priority": 1})  # E
Draft("rn::nats:::orders", "order.created", {})  # E
Draft(aggregate_type="rn::nats:::orders", payload={})  # E
emit_many([{"event": "order.created"}])  # E
retry_messages(["1"])  # E
skip_messages(1)  # E
wrong_id: list[ActionResult[tuple[str, str]]] = retry_jobs([1])  # E
unpark(["rn::nats:::orders"])  # E
wrong_aggregate: list[ActionResult[int]] = unpark([("rn::nats:::orders", "42")])  # E
pause_destination(1)  # E
resume_destination("rn::nats:::orders", "operator")  # E
MessageCriteria(ids=[1])  # E
MessageCriteria(since=TODAY)  # E
replay_messages([1])  # E
wrong_replay: Replayed = replay_messages(MessageCriteria(ids=(1,))).messages  # E

StoreIsolation(name=1)  # E
StoreIsolation(field="store", name="isolation", web=["TRUNCATE"])  # E
MembershipIsolation(field="store", name="members")  # E
wrong_scope: StoreIsolation = SystemScope(name="system")  # E
SystemScope(name="system", worker={"SELEKT": []})  # E
SameStoreForeignKey(name="same_store")  # E
DatabaseForeignKey(field="user", on_delete="DELETE", name="of_user")  # E
without_store(1)  # E
stores_of("me")  # E
reset_store("default")  # E


class WithoutAllowed:
    """Resolver that lacks ``allowed``."""

    def resolve(self, request: HttpRequest) -> UUID | None:
        """Return the store."""
        return STORE


wrong_resolver: StoreResolver = WithoutAllowed()  # E
SubdomainResolver().store_of(5)  # E


def fill(apps: Any, schema_editor: Any) -> None:
    """Forget the store."""


RunForEachStore(fill)  # E
DropForeignKey("booking")  # E
ProtectModel("auth.User", "isolation")  # E
ReleaseModel("auth.User")  # E
wrong_operation: ReleaseModel = InstallFanOutFunction()  # E
LocksBriefly("0001_initial")  # E
FillStore("crm.Activity", "organization")  # E
BackfillStore("crm.Activity", "organization", "contact")  # E
RequireStore("crm.Activity")  # E
StopFillingStore("crm.Activity", through="contact")  # E

Job().attempts.upper()  # E
JobError().code + 1  # E
JobResult().attempts.upper()  # E
Limit().max_concurrency + 1  # E
Process().pid.upper()  # E
Dashboard().hostname + 1  # E
FanOutRecord().label + 1  # E
FollowUp().remaining.upper()  # E
FlowRecord().name + 1  # E
FlowMember().task + 1  # E
FlowEdge().after_id.upper()  # E
OrderedKey().job_id.upper()  # E
OrderedJob().run_at + 1  # E
SupersededRun().lease.upper()  # E
JobProgress().done.upper()  # E
JobStep().name + 1  # E
CronEntryState().last_tick_at.isoformat()  # E
CronTick().entry + 1  # E
Schedule().next_at + 1  # E
ScheduleTick().number.upper()  # E
TaskMinute().failed.upper()  # E
QueueMinute().queue + 1  # E
Message().event + 1  # E
BlockedAggregate().head_id.upper()  # E
RelayPartition().owner + 1  # E
DestinationState().outage_since.isoformat()  # E
Replay().requested_by + 1  # E
InboxMessage().store_id.hex.upper()  # E

as_role(1)  # E
as_store(5.5)  # E
assert_enqueued("typing-store")  # E
assert_isolated(Model(), roles="web")  # E
drain_jobs(5)  # E
drain_outbox(limit="5")  # E
wrong_job: list[DrainedJob] = drain_outbox()  # E
wrong_drained: list[DrainedMessage] = drain_jobs()  # E
perform_job(of_store, day=TODAY)  # E


@backend_task
def of_django(number: int) -> str:
    return str(number)


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
job_enqueued.connect("receiver")  # E
job_started.connect(print, sender_id=1)  # E
job_finished.send(job=1)  # E
Publisher()  # E
publish_one_by_one([], print)  # E
ClientPublisher()  # E
PublishFailure("retry")  # E
wrong_verdict: Verdict = "retry"  # E
wrong_answer: Verdict = NOT_SENT  # E
wrong_message: OutgoingMessage = wrong_answer  # E
Source("scans", consumer="mine")  # E
Delivery(count="1", raw="", handle=None)  # E
Envelope(message_id=uuid4(), event="order.created", payload="{}")  # E
read_delivery({}, {}, kind="header", message_id="1", headers=dict, count=1, raw="{}", handle=1)  # E
TenantMiddleware("view")  # E
StoreRefused("no such store", status="404")  # E
JobTablesRouter().allow_migrate(1, "salon_jobs")  # E
ManyToManyIsolation(name="tags_isolation")  # E
expect_no_rows("customer")  # E
violation_of("new row violates row-level security")  # E
form_errors()  # E
StoreAdminSite(5)  # E
StoreAdminSiteMixin(5)  # E
StoreAdminMixin()  # E
StoreAdminConfig()  # E
