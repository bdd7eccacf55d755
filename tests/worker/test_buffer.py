"""Tests how the local queue hands jobs out, asks for more, and ends."""

from __future__ import annotations

import threading

import pytest

from salon_jobs.core.records import ClaimedJob
from salon_jobs.worker import buffer as local_queue
from salon_jobs.worker.buffer import Handful, JobBuffer
from tests.e2e.worker_process import eventually


class Clock:
    """Is a monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give the queue a clock that the test moves."""
    made = Clock()
    monkeypatch.setattr(local_queue, "time", made)
    return made


def job(number: int, lease: int = 1) -> ClaimedJob:
    return ClaimedJob(number, "test-system", None, "{}", "default", 0, 0.0, 0, 3, lease, False, None, 0.0, 0)


# What each job was taken with; the threads of the tests end a job before they take another.
handfuls: dict[tuple[int, int], Handful] = {}


def take(queue: JobBuffer, handful: Handful | None = None) -> ClaimedJob:
    """Take a job on a thread of its own, or as the thread of this handful."""
    handful = handful or Handful()
    taken = queue.take(handful)
    assert taken is not None
    handfuls[taken.id, taken.lease] = handful
    return taken


def ran(queue: JobBuffer, taken: ClaimedJob) -> None:
    queue.ran(handfuls.pop((taken.id, taken.lease)))


def end(queue: JobBuffer, taken: ClaimedJob) -> None:
    ran(queue, taken)
    queue.forget([taken])


def run_one(queue: JobBuffer, clock: Clock, took_s: float, number: int = 1) -> None:
    queue.put([job(number)])
    taken = take(queue)
    clock.now += took_s
    end(queue, taken)


def test_before_anything_was_measured_it_asks_for_one_job_per_thread(clock: Clock) -> None:
    queue = JobBuffer(4)
    assert queue.room() == 4
    queue.put([job(1), job(2)])
    assert queue.room() == 2
    take(queue)
    assert queue.room() == 2, "a running job takes its thread as a waiting one does"


@pytest.mark.parametrize(("took_s", "prefetch"), [(1.0, 0), (0.1, 8), (0.01, 80), (0.000001, 2000), (0.0, 2000)])
def test_it_prefetches_about_200_ms_of_measured_work_and_never_more_than_2000(
    clock: Clock, took_s: float, prefetch: int
) -> None:
    queue = JobBuffer(4)
    run_one(queue, clock, took_s)
    assert queue.room() == 4 + prefetch


def test_it_asks_again_only_when_a_quarter_of_the_prefetch_is_gone(clock: Clock) -> None:
    queue = JobBuffer(2)
    run_one(queue, clock, 0.0625)  # a number that floats hold exactly
    assert queue.room() == 2 + 6
    queue.put([job(number) for number in range(8)])
    rooms = []
    for _ in range(8):
        rooms.append(queue.room())
        taken = take(queue)
        clock.now += 0.0625
        end(queue, taken)
    assert rooms == [0, 0, 0, 0, 4, 5, 6, 7]
    assert queue.room() == 8


def test_with_the_smallest_jobs_it_asks_again_about_at_once(clock: Clock) -> None:
    queue = JobBuffer(1)
    run_one(queue, clock, 0.0)
    queue.put([job(number) for number in range(2000)])
    rooms = [queue.room()]
    thread = Handful()
    for _ in range(126):
        end(queue, take(queue, thread))
        rooms.append(queue.room())
    assert rooms == [0] * 125 + [126, 127]


def test_jobs_come_out_in_claim_order_and_are_known_until_done(clock: Clock) -> None:
    queue = JobBuffer(2)
    queue.put([job(3), job(1)])
    queue.put([job(2)])
    first = take(queue)
    assert (first.id, queue.running_count()) == (3, 1)
    assert [take(queue).id, take(queue).id] == [1, 2]
    assert sorted(queue.leases()) == [(1, 1), (2, 1), (3, 1)]
    end(queue, first)
    assert sorted(queue.leases()) == [(1, 1), (2, 1)]


def test_a_job_claimed_anew_before_its_first_run_said_done_is_kept_apart(clock: Clock) -> None:
    queue = JobBuffer(2)
    queue.put([job(1, lease=1)])
    first = take(queue)
    queue.put([job(1, lease=2)])
    second = take(queue)
    end(queue, first)
    assert queue.leases() == [(1, 2)]
    assert not queue.wait_idle(0)
    end(queue, second)
    assert queue.leases() == []
    assert queue.wait_idle(0)


def test_take_waits_for_a_job_and_closing_ends_the_wait() -> None:
    queue = JobBuffer(2)
    got: list[int | None] = []

    def work() -> None:
        handful = Handful()
        while (taken := queue.take(handful)) is not None:
            got.append(taken.id)
            queue.ran(handful)
            queue.forget([taken])
        got.append(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    queue.put([job(7)])
    assert queue.wait_idle(10)
    queue.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert got == [7, None, None]


def test_closing_hands_back_what_had_not_started_once(clock: Clock) -> None:
    queue = JobBuffer(1)
    queue.put([job(1, lease=4), job(2, lease=5), job(3, lease=6)])
    running = take(queue)
    assert queue.close() == [(2, 5), (3, 6)]
    assert queue.close() == []
    assert queue.room() == 0
    assert queue.take(Handful()) is None
    assert not queue.wait_idle(0)
    end(queue, running)
    assert queue.wait_idle(0)


def test_waiting_for_room_ends_with_room_and_with_closing() -> None:
    queue = JobBuffer(1)
    queue.put([job(1)])
    running = take(queue)
    assert not queue.wait_for_room(0)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(queue.wait_for_room(10)), daemon=True)
    waiter.start()
    end(queue, running)
    waiter.join(10)
    assert answers == [True]
    queue.put([job(number) for number in range(3000)])
    waiter = threading.Thread(target=lambda: answers.append(queue.wait_for_room(10)), daemon=True)
    waiter.start()
    queue.close()
    waiter.join(10)
    assert answers == [True, False]


def test_what_waits_longer_than_a_second_behind_a_long_job_is_handed_back(clock: Clock) -> None:
    queue = JobBuffer(1)
    queue.put([job(1), job(2, lease=7)])
    running = take(queue)
    clock.now += 0.9
    queue.put([job(3)])
    assert queue.overdue() == []
    clock.now += 0.2
    assert queue.overdue() == [(2, 7)]
    assert queue.has_waiting()
    assert sorted(queue.leases()) == [(1, 1), (3, 1)], "the running one is nobody else's"
    end(queue, running)
    assert take(queue).id == 3


def test_threads_inside_a_long_job_are_not_counted_on(clock: Clock) -> None:
    queue = JobBuffer(2)
    run_one(queue, clock, 0.01)
    assert queue.room() == 2 + 40
    queue.put([job(1), job(2)])
    take(queue)
    clock.now += 1.1
    second = take(queue)
    assert queue.room() == 20
    clock.now += 1.1
    assert queue.room() == 0
    end(queue, second)
    assert queue.room() == 1 + 1


def test_a_job_that_ran_is_ours_until_its_end_is_written(clock: Clock) -> None:
    queue = JobBuffer(1)
    queue.put([job(1)])
    taken = take(queue)
    ran(queue, taken)
    assert (queue.running_count(), queue.leases(), queue.wait_idle(0)) == (0, [(1, 1)], False)
    queue.forget([taken])
    assert (queue.leases(), queue.wait_idle(0)) == ([], True)


def test_it_asks_for_no_more_while_thousands_of_ends_are_not_written(clock: Clock) -> None:
    queue = JobBuffer(1)
    jobs = [job(number) for number in range(8000)]
    queue.put(jobs)
    thread = Handful()
    for _ in jobs:
        ran(queue, take(queue, thread))
    assert queue.room() == 0
    queue.forget(jobs[:1])
    assert queue.room() > 0


def test_what_is_withdrawn_does_not_run_and_the_others_keep_their_order(clock: Clock) -> None:
    queue = JobBuffer(1)
    queue.put([job(1), job(2), job(3, lease=5), job(4)])
    running = take(queue)
    assert queue.withdraw({(1, 1), (2, 7)}) == []
    assert [each.id for each in queue.withdraw({(2, 1), (3, 5)})] == [2, 3]
    assert sorted(queue.leases()) == [(1, 1), (4, 1)]
    end(queue, running)
    assert take(queue).id == 4
    end(queue, job(4))
    queue.put([job(5)])
    queue.withdraw({(5, 1)})
    assert queue.wait_idle(0)


def measured(clock: Clock, concurrency: int, took_s: float = 0.00003) -> JobBuffer:
    """Return a queue that has measured how long jobs take."""
    queue = JobBuffer(concurrency)
    run_one(queue, clock, took_s)
    return queue


@pytest.mark.parametrize(("took_s", "at_once"), [(1.0, 1), (0.001, 1), (0.0001, 10), (0.00003, 32)])
def test_a_thread_takes_a_millisecond_of_work_at_once_and_32_jobs_at_most(
    clock: Clock, took_s: float, at_once: int
) -> None:
    queue, thread = measured(clock, 2, took_s), Handful()
    queue.put([job(number) for number in range(100)])
    assert take(queue, thread).id == 0
    assert take(queue).id == at_once


def test_the_threads_share_what_there_is(clock: Clock) -> None:
    queue = measured(clock, 4)
    queue.put([job(number) for number in range(9)])
    assert [take(queue).id for _ in range(4)] == [0, 3, 5, 6]
    assert queue.running_count() == 4
    assert queue.has_waiting()


def test_what_a_thread_took_behind_a_long_job_goes_to_others(clock: Clock) -> None:
    queue, slow, other = measured(clock, 2), Handful(), Handful()
    queue.put([job(number) for number in range(6)])
    assert take(queue, slow).id == 0
    assert take(queue, other).id == 3
    clock.now += 0.01
    assert take(queue, other).id == 4, "its own comes first"
    assert [take(queue, other).id for _ in range(3)] == [1, 2, 5]
    assert not queue.has_waiting()
    end(queue, job(0))
    assert queue.running_count() == 1


def working_on(queue: JobBuffer) -> tuple[list[int], threading.Thread]:
    """Have a thread run what it takes, until the buffer is closed; return the list of what it ran, and the thread."""
    got: list[int] = []

    def work() -> None:
        handful = Handful()
        while (taken := queue.take(handful)) is not None:
            got.append(taken.id)
            queue.ran(handful)
            queue.forget([taken])

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return got, thread


def test_a_thread_without_work_takes_it_from_behind_a_long_job() -> None:
    queue, slow = JobBuffer(2), Handful()
    queue.put([job(0)])
    end(queue, take(queue))
    queue.put([job(number) for number in range(1, 5)])
    assert take(queue, slow).id == 1
    got, thread = working_on(queue)
    queue.forget([job(1)])
    assert queue.wait_idle(10), "the first thread never comes back"
    queue.close()
    thread.join(10)
    assert sorted(got) == [2, 3, 4]


def test_the_tiniest_jobs_are_run_by_one_thread_until_it_meets_a_long_one(clock: Clock) -> None:
    queue = measured(clock, 2, took_s=0.0)
    queue.put([job(number) for number in range(3)])
    assert take(queue).id == 0
    got, thread = working_on(queue)
    eventually(lambda: queue._idle_threads == 1)
    assert got == []
    clock.now += 0.01
    queue.forget([job(0)])
    assert queue.wait_idle(10), "the other thread took nothing"
    queue.close()
    thread.join(10)
    assert got == [1, 2]


@pytest.mark.parametrize("way", ["close", "overdue", "withdraw"])
def test_what_a_thread_took_and_has_not_begun_can_be_taken_back(clock: Clock, way: str) -> None:
    queue, thread = measured(clock, 2), Handful()
    queue.put([job(number) for number in range(4)])
    assert take(queue, thread).id == 0
    if way == "withdraw":
        assert [each.id for each in queue.withdraw({(1, 1)})] == [1]
        assert [take(queue, thread).id for _ in range(2)] == [2, 3]
        return
    clock.now += 1.1
    assert sorted(getattr(queue, way)()) == [(1, 1), (2, 1), (3, 1)]
    assert [job_id for job_id, _ in queue.leases()] == [0]
    end(queue, job(0))
    assert queue.wait_idle(0)
