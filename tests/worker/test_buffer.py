"""How the local queue hands jobs out, asks for more, and ends."""

from __future__ import annotations

import sys
import threading

import pytest

from salon_jobs.core.records import ClaimedJob
from salon_jobs.worker import buffer as local_queue
from salon_jobs.worker.buffer import JobBuffer
from tests.waiting import LIMIT_S, eventually


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


class Queue(JobBuffer):
    """Buffer that knows which thread runs each job."""

    def __init__(self, concurrency: int) -> None:
        super().__init__(concurrency)
        self.free = list(range(concurrency))
        self.threads: dict[tuple[int, int], int] = {}

    def next(self) -> ClaimedJob:
        """Take a job on the first thread that is free."""
        thread = self.free.pop(0)
        taken = self.take(thread)
        assert taken is not None
        self.threads[taken.id, taken.lease] = thread
        return taken

    @property
    def asleep(self) -> list[int]:
        """Return the threads that wait for a job, the last one last."""
        return self._sleeping

    def has_run(self, taken: ClaimedJob) -> None:
        thread = self.threads.pop((taken.id, taken.lease))
        self.free.append(thread)
        self.ran(thread)

    def end(self, taken: ClaimedJob) -> None:
        self.has_run(taken)
        self.forget([taken])


def run_one(queue: Queue, clock: Clock, took_s: float, number: int = 1) -> None:
    queue.put([job(number)])
    taken = queue.next()
    clock.now += took_s
    queue.end(taken)


def test_room_before_any_measure(clock: Clock) -> None:
    queue = Queue(4)
    assert queue.room() == 4
    queue.put([job(1), job(2)])
    assert queue.room() == 2
    queue.next()
    assert queue.room() == 2, "a running job takes its thread as a waiting one does"


@pytest.mark.parametrize(("took_s", "prefetch"), [(1.0, 0), (0.1, 8), (0.01, 80), (0.001, 800)])
def test_prefetch_of_measured_work(clock: Clock, took_s: float, prefetch: int) -> None:
    queue = Queue(4)
    run_one(queue, clock, took_s)
    assert queue.room() == 4 + prefetch


def test_room_after_quarter_of_prefetch(clock: Clock) -> None:
    queue = Queue(2)
    run_one(queue, clock, 0.0625)  # a number that floats hold exactly
    assert queue.room() == 2 + 6
    queue.put([job(number) for number in range(8)])
    rooms = []
    for _ in range(8):
        rooms.append(queue.room())
        taken = queue.next()
        clock.now += 0.0625
        queue.end(taken)
    assert rooms == [0, 0, 0, 0, 4, 5, 6, 7]
    assert queue.room() == 8


def test_room_with_smallest_jobs(clock: Clock) -> None:
    queue = Queue(1)
    run_one(queue, clock, 0.0)
    assert queue.room() == 2000
    queue.put([job(number) for number in range(2000)])
    assert queue.room() == 2000
    queue.put([job(number) for number in range(2000, 4000)])
    rooms = [queue.room()]
    for _ in range(126):
        queue.end(queue.next())
        rooms.append(queue.room())
    assert rooms == [0] * 125 + [126, 127]


def test_jobs_in_claim_order(clock: Clock) -> None:
    queue = Queue(3)
    queue.put([job(3), job(1)])
    queue.put([job(2)])
    first = queue.next()
    assert (first.id, queue.running_count()) == (3, 1)
    assert [queue.next().id, queue.next().id] == [1, 2]
    assert sorted(queue.leases()) == [(1, 1), (2, 1), (3, 1)]
    queue.end(first)
    assert sorted(queue.leases()) == [(1, 1), (2, 1)]


def test_job_claimed_twice_is_kept_apart(clock: Clock) -> None:
    queue = Queue(2)
    queue.put([job(1, lease=1)])
    first = queue.next()
    queue.put([job(1, lease=2)])
    second = queue.next()
    queue.end(first)
    assert queue.leases() == [(1, 2)]
    assert not queue.wait_until_empty(0)
    queue.end(second)
    assert queue.leases() == []
    assert queue.wait_until_empty(0)


def take_all(queue: JobBuffer, got: list[int], threads: int) -> list[threading.Thread]:
    """Start threads that take jobs until the buffer is closed."""

    def work(thread: int) -> None:
        while (taken := queue.take(thread)) is not None:
            got.append(taken.id)
            queue.ran(thread)
            queue.forget([taken])

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    for thread in workers:
        thread.start()
    return workers


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_last_thread_that_slept_wakes_first() -> None:
    queue, taken = Queue(3), list[int]()

    def work(thread: int) -> None:
        while queue.take(thread) is not None:
            taken.append(thread)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(3)]
    for started in ([1], [1, 0], [1, 0, 2]):
        workers[started[-1]].start()
        eventually(lambda: queue.asleep, started)
    for _ in range(3):
        queue.put([job(1)])
        eventually(lambda: queue.asleep, [1, 0, 2])
    queue.close()
    join(*workers)
    assert taken == [2, 2, 2]


def test_close_returns_unstarted_jobs_once(clock: Clock) -> None:
    queue = Queue(1)
    queue.put([job(1, lease=4), job(2, lease=5), job(3, lease=6)])
    running = queue.next()
    assert queue.close() == [(2, 5), (3, 6)]
    assert queue.close() == []
    assert queue.room() == 0
    assert queue.take(0) is None
    assert not queue.wait_until_empty(0)
    queue.end(running)
    assert queue.wait_until_empty(0)


def test_end_of_wait_for_room() -> None:
    queue = Queue(1)
    queue.put([job(1)])
    running = queue.next()
    queue.wait_for_room(0)
    for make_room in (lambda: queue.end(running), queue.close):
        assert queue.room() == 0
        waiter = threading.Thread(target=queue.wait_for_room, args=[10 * LIMIT_S], daemon=True)
        waiter.start()
        make_room()
        join(waiter)
        queue.put([job(number) for number in range(3000)])


def test_overdue_jobs_are_handed_back(clock: Clock) -> None:
    queue = Queue(1)
    queue.put([job(1), job(2, lease=7)])
    running = queue.next()
    clock.now += 0.9
    queue.put([job(3)])
    assert queue.overdue() == []
    clock.now += 0.2
    assert queue.overdue() == [(2, 7)]
    assert queue.has_waiting()
    assert sorted(queue.leases()) == [(1, 1), (3, 1)], "the running one is nobody else's"
    queue.end(running)
    assert queue.next().id == 3


def test_room_behind_long_jobs(clock: Clock) -> None:
    queue = Queue(2)
    run_one(queue, clock, 0.01)
    assert queue.room() == 2 + 40
    queue.put([job(1), job(2)])
    queue.next()
    clock.now += 1.1
    second = queue.next()
    assert queue.room() == 20
    clock.now += 1.1
    assert queue.room() == 0
    queue.end(second)
    assert queue.room() == 1 + 1


def test_job_is_ours_until_written(clock: Clock) -> None:
    queue = Queue(1)
    queue.put([job(1)])
    taken = queue.next()
    queue.has_run(taken)
    assert (queue.running_count(), queue.leases(), queue.wait_until_empty(0)) == (0, [(1, 1)], False)
    queue.forget([taken])
    assert (queue.leases(), queue.wait_until_empty(0)) == ([], True)


def test_no_room_with_thousands_unwritten(clock: Clock) -> None:
    queue = Queue(1)
    jobs = [job(number) for number in range(8000)]
    queue.put(jobs)
    for _ in jobs:
        queue.has_run(queue.next())
    assert queue.room() == 0
    queue.forget(jobs[:1])
    assert queue.room() > 0


def test_withdraw_keeps_order(clock: Clock) -> None:
    queue = Queue(1)
    queue.put([job(1), job(2), job(3, lease=5), job(4)])
    running = queue.next()
    assert queue.withdraw({(1, 1), (2, 7)}) == []
    assert [each.id for each in queue.withdraw({(2, 1), (3, 5)})] == [2, 3]
    assert sorted(queue.leases()) == [(1, 1), (4, 1)]
    queue.end(running)
    assert queue.next().id == 4
    queue.end(job(4))
    queue.put([job(5)])
    queue.withdraw({(5, 1)})
    assert queue.wait_until_empty(0)


def test_concurrent_takes_and_removals() -> None:
    """Each job goes to one thread or is removed, whatever happens at once."""
    queue, got = JobBuffer(3), list[int]()
    queue.put([job(number) for number in range(3000)])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = take_all(queue, got, 3)
        while not queue.wait_until_empty(0):
            got += [each.id for each in queue.withdraw({(number, 1) for number in range(0, 3000, 7)})]
            matching = queue.take_matching(lambda each: each.id % 5 == 0, 3)
            got += [each.id for each in matching]
            queue.forget(matching)
    finally:
        sys.setswitchinterval(interval)
    queue.close()
    join(*workers)
    assert sorted(got) == list(range(3000))
