"""Tests how the local queue hands jobs out, asks for more, and ends."""

from __future__ import annotations

import sys
import threading

import pytest

from salon_jobs.core.records import ClaimedJob
from salon_jobs.worker import buffer as local_queue
from salon_jobs.worker.buffer import JobBuffer


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


# Which thread runs each job that was taken.
threads: dict[tuple[int, int], int] = {}


def take(queue: JobBuffer) -> ClaimedJob:
    """Take a job on the first thread that is free."""
    busy = set(threads.values())
    thread = next(number for number in range(len(queue._since)) if number not in busy)
    taken = queue.take(thread)
    assert taken is not None
    threads[taken.id, taken.lease] = thread
    return taken


def ran(queue: JobBuffer, taken: ClaimedJob) -> None:
    queue.ran(threads.pop((taken.id, taken.lease)))


@pytest.fixture(autouse=True)
def _free_threads() -> None:
    threads.clear()


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
    for _ in range(126):
        end(queue, take(queue))
        rooms.append(queue.room())
    assert rooms == [0] * 125 + [126, 127]


def test_jobs_come_out_in_claim_order_and_are_known_until_done(clock: Clock) -> None:
    queue = JobBuffer(3)
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

    def work(thread: int) -> None:
        while (taken := queue.take(thread)) is not None:
            got.append(taken.id)
            queue.ran(thread)
            queue.forget([taken])
        got.append(None)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2)]
    for thread in workers:
        thread.start()
    queue.put([job(7)])
    assert queue.wait_idle(10)
    queue.close()
    for thread in workers:
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
    assert queue.take(0) is None
    assert not queue.wait_idle(0)
    end(queue, running)
    assert queue.wait_idle(0)


def test_waiting_for_room_ends_with_room_and_with_closing() -> None:
    queue = JobBuffer(1)
    queue.put([job(1)])
    running = take(queue)
    queue.wait_for_room(0)
    for make_room in (lambda: end(queue, running), queue.close):
        assert queue.room() == 0
        waiter = threading.Thread(target=queue.wait_for_room, args=[60], daemon=True)
        waiter.start()
        make_room()
        waiter.join(10)
        assert not waiter.is_alive()
        queue.put([job(number) for number in range(3000)])


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
    for _ in jobs:
        ran(queue, take(queue))
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


def test_a_job_goes_to_one_thread_or_is_removed_whatever_happens_at_once() -> None:
    queue = JobBuffer(3)
    jobs = [job(number) for number in range(3000)]
    queue.put(jobs)
    got: list[int] = []

    def work(thread: int) -> None:
        while (taken := queue.take(thread)) is not None:
            got.append(taken.id)
            queue.ran(thread)
            queue.forget([taken])

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in workers:
            thread.start()
        while not queue.wait_idle(0):
            got += [each.id for each in queue.withdraw({(number, 1) for number in range(0, 3000, 7)})]
            matching = queue.take_matching(lambda each: each.id % 5 == 0, 3)
            got += [each.id for each in matching]
            queue.forget(matching)
    finally:
        sys.setswitchinterval(interval)
    queue.close()
    for thread in workers:
        thread.join(10)
    assert sorted(got) == list(range(3000))
