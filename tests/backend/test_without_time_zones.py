"""A project with ``USE_TZ = False``: its datetimes are naive, in TIME_ZONE, and no instant is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connections, transaction
from django.test.utils import override_settings
from django.utils import timezone

from salon_jobs import cron, current_job, emit, get_job
from salon_jobs.backend.framework import TaskResultStatus
from salon_jobs.control import MessageCriteria, replay_messages, retry_jobs
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.dashboard import queues
from salon_jobs.jobs.payload import PayloadType
from salon_jobs.jobs.statistics import totals
from salon_jobs.models import CronTick, Job, Message
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.schedules.scheduler import Scheduler
from salon_jobs.testing import drain_jobs, drain_outbox
from tests import tasks
from tests.backend import calls
from tests.backend.scene import TaskWorker, all_finished
from tests.outbox.scene import ORDERS
from tests.plans.explain import signed_in
from tests.support import change
from tests.tasks import Hooks
from tests.waiting import LIMIT_S, eventually

PARIS = ZoneInfo("Europe/Paris")
# Paris is two hours ahead of UTC on the first of July.
SUMMER = datetime(2030, 7, 1, 12)  # noqa: DTZ001
# Clocks went from three to two: half past two came twice.
FIRST, SECOND = (datetime(2030, 10, 27, hour, 30, tzinfo=UTC) for hour in (0, 1))


@pytest.fixture(autouse=True)
def naive(database: None) -> Iterator[None]:
    connections.close_all()
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Paris"):
        yield
        connections.close_all()


def stored(column: str, table: str = "salon_jobs_job") -> list[datetime]:
    """Return instants as PostgreSQL has them, in UTC."""
    with connections["owner"].cursor() as cursor:
        cursor.execute(f"SELECT to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') FROM {table}")
        return [datetime.fromisoformat(row[0]).replace(tzinfo=UTC) for row in cursor.fetchall()]


def is_now(instant: datetime | None) -> bool:
    """Return whether an instant is naive, and within the last seconds by the project's clock."""
    assert instant is not None
    return timezone.is_naive(instant) and abs(timezone.now() - instant) < timedelta(seconds=LIMIT_S)


def test_naive_run_after_is_in_project_time_zone() -> None:
    result = calls.add.using(run_after=SUMMER).enqueue(1)
    assert stored("run_at") == [datetime(2030, 7, 1, 10, tzinfo=UTC)]
    assert calls.add.get_result(result.id) == result
    assert calls.add.get_result(result.id).task.run_after == SUMMER
    assert drain_jobs(now=SUMMER - timedelta(seconds=1)) == []
    assert len(drain_jobs(now=SUMMER)) == 1
    # The zone of one request does not change what a naive datetime means.
    with timezone.override("Asia/Tokyo"):
        calls.add.using(run_after=SUMMER, priority=3).enqueue(1)
    assert stored("run_at") == [datetime(2030, 7, 1, 10, tzinfo=UTC)]


def test_aware_run_after_comes_back() -> None:
    given = datetime(2030, 7, 1, 12, tzinfo=PARIS)
    result = calls.add.using(run_after=given).enqueue(1)
    assert calls.add.get_result(result.id).task.run_after == given
    assert stored("run_at") == [datetime(2030, 7, 1, 10, tzinfo=UTC)]


def test_instants_of_results_are_naive() -> None:
    results = [calls.describe.enqueue(), calls.fail.enqueue()]
    assert is_now(results[0].enqueued_at)
    drain_jobs(raise_errors=False)
    for result in results:
        result.refresh()
        instants = (result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at)
        assert all(map(is_now, instants))
        assert sorted(instants) == list(instants)
    assert results[1].status is TaskResultStatus.FAILED
    [during] = calls.seen
    assert is_now(during.started_at)


def test_jobs_take_and_give_naive_datetimes(hooks: Hooks) -> None:
    seen: list[Any] = []

    def handler(**_: object) -> None:
        job = current_job()
        seen.extend((job.run_at, job.created_at))
        raise ValueError("once more")

    hooks.system = handler
    handle = tasks.system.using(run_at=SUMMER, expires_at=SUMMER + timedelta(days=1)).enqueue()
    record = get_job(handle.id)
    assert (record.run_at, is_now(record.created_at), record.first_started_at) == (SUMMER, True, None)
    assert drain_jobs(now=SUMMER - timedelta(seconds=1)) == []
    drain_jobs(now=SUMMER, raise_errors=False)
    assert seen[:2] == [SUMMER, record.created_at]
    record = handle.refresh()
    assert is_now(record.last_started_at)
    assert [is_now(error.occurred_at) and is_now(error.started_at) for error in record.errors] == [True] * 3
    assert is_now(record.finished_at)
    retry_jobs(handle, at=SUMMER)
    assert get_job(handle.id).run_at == SUMMER


def test_repeated_hours_are_told_apart() -> None:
    for instant in (FIRST, SECOND):
        naive = instant.astimezone(PARIS).replace(tzinfo=None)
        assert naive.replace(fold=0) == datetime(2030, 10, 27, 2, 30)  # noqa: DTZ001
        tasks.system.using(run_at=naive).enqueue()
    assert sorted(stored("run_at")) == [FIRST, SECOND]
    assert [job.run_at for job in Job.objects.order_by("id")] == [FIRST, SECOND]
    assert list(Job.objects.order_by("id").values_list("run_at", flat=True)) == [FIRST, SECOND]
    first, second = Job.objects.order_by("id")
    assert second.run_at - first.run_at == timedelta(hours=1)
    assert [get_job(job.pk).run_at.fold for job in (first, second)] == [0, 1]
    assert len(drain_jobs(now=FIRST)) == 1
    assert len(drain_jobs(now=SECOND)) == 1


def test_impossible_instant_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="run_at must be an aware datetime, not 'noon'"):
        tasks.system.using(run_at="noon")  # type: ignore[arg-type]
    with pytest.raises(OptionInvalid, match="run_at must lie between"):
        tasks.system.using(run_at=datetime.min)  # noqa: DTZ901


def test_arguments_may_be_naive() -> None:
    def remind(at: datetime, until: datetime | None = None) -> None: ...

    payload = PayloadType("remind", remind, with_store=False)
    given = {"at": SUMMER, "until": datetime(2030, 7, 1, 12, tzinfo=PARIS)}
    arguments = payload.bind((), given)
    assert payload.decode(arguments.json, None) == given


@pytest.mark.usefixtures("own_entries")
def test_cron_fires_by_instants() -> None:
    """Whatever the project's clock says."""
    cron("30 2 * * *", tasks.system, name="nightly", timezone="Europe/Paris", payload=lambda at: {"note": f"{at}"})
    assert [Scheduler(using="default").run_at(at) for at in (FIRST, FIRST, SECOND)] == [1, 0, 0]
    cron_entries.clear()  # a tick of it may be due at this very minute
    cron("* * * * *", tasks.system, name="often")
    Scheduler(using="default").poll()
    before = datetime.now(UTC)
    change("UPDATE salon_jobs_cron_entry SET registered_at = registered_at - interval '3 minutes'")
    Scheduler(using="default").poll()
    assert [tick.tick_at for tick in CronTick.objects.filter(entry="nightly")] == [FIRST]
    often = [tick.tick_at for tick in CronTick.objects.filter(entry="often").order_by("tick_at")]
    assert len(often) >= 3
    assert often[-1] > before - timedelta(minutes=1)


def test_messages_are_replayed_by_naive_times() -> None:
    with transaction.atomic():
        emit(ORDERS, event="order.created", payload={})
    assert len(drain_outbox()) == 1
    message = Message.objects.get()
    assert abs(datetime.now(UTC) - message.created_at) < timedelta(seconds=LIMIT_S)
    # Not now: one hour in the year comes twice, and a naive time means the first.
    change("UPDATE salon_jobs_message SET created_at = %s", datetime(2026, 7, 1, 10, 0, 30, tzinfo=UTC))
    since = datetime(2026, 7, 1, 12)  # noqa: DTZ001
    why: dict[str, Any] = {"requested_by": "kei", "reason": "lost"}
    within = MessageCriteria(aggregate_type=ORDERS, since=since, until=since + timedelta(minutes=1))
    assert replay_messages(within, dry_run=True).messages == 1
    assert replay_messages(MessageCriteria(aggregate_type=ORDERS, until=since), dry_run=True).messages == 0
    assert replay_messages(within, **why).messages == 1


class NaiveWorker(TaskWorker):
    """Worker whose settings say ``USE_TZ = False``, too."""

    settings_module = "tests.backend.naive_settings"


def test_worker_and_admin_with_naive_datetimes() -> None:
    due = timezone.now() + timedelta(seconds=1)
    succeeding = calls.add.using(run_after=due).enqueue(1)
    failing, later = calls.fail.enqueue(), calls.add.using(run_after=SUMMER).enqueue(2)
    with NaiveWorker("--concurrency", "2") as worker:
        worker.wait_until_ready()
        eventually(lambda: all_finished(succeeding, failing), what=lambda: worker.output)
        eventually(lambda: totals(queues.HOUR, using="default"), what=lambda: worker.output)
    assert succeeding.started_at >= due
    assert (succeeding.return_value, is_now(succeeding.finished_at)) == (2, True)
    assert failing.status is TaskResultStatus.FAILED
    [waiting] = Job.objects.filter(state="queued")
    with signed_in() as client:
        for page in (
            *("job/", "job/failures/", "jobresult/", "process/", "cronentrystate/", "crontick/", "fanoutrecord/"),
            *("message/", "destinationstate/", "dashboard/", "dashboard/?part=plots", "dashboard/?part=now"),
        ):
            assert client.get(f"/admin/salon_jobs/{page}", follow=True).status_code == 200, page
        answer = client.get(f"/admin/salon_jobs/job/{waiting.pk}/change/", follow=True)
        assert answer.status_code == 200
        text = answer.content.decode()
        # As the project's own models are shown: in its time zone.
        assert "2030-07-01 12:00" in text
        assert later.task.run_after == SUMMER
        form = {"action": "retry", "index": "0", "select_across": "0", "confirmed": "1", "at": "2030-07-01T12:00"}
        [failed] = Job.objects.filter(state="failed")
        answer = client.post("/admin/salon_jobs/job/", {**form, "_selected_action": str(failed.pk)}, follow=True)
        assert answer.status_code == 200
    assert get_job(failed.pk).run_at == SUMMER
