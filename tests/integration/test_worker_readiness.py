"""Shows that a worker whose threads have ended does not call itself ready."""

from __future__ import annotations

import threading

import pytest

from salon_jobs.core.errors import NotReady
from salon_jobs.jobs.runner import Runner
from salon_jobs.jobs.worker import WorkerOptions
from salon_jobs.jobs.worker_loop import WorkerLoop


@pytest.mark.parametrize("lives", [True, False])
def test_a_worker_whose_threads_have_ended_is_not_ready(
    process_id: int, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    entered = threading.Semaphore(0)
    run = Runner._run

    def run_or_end(self: Runner) -> None:
        entered.release()
        if lives:
            run(self)

    monkeypatch.setattr(Runner, "_run", run_or_end)
    loop = WorkerLoop(process_id, WorkerOptions(concurrency=2))
    work = threading.Thread(target=loop.run)
    work.start()
    try:
        for _ in range(2):
            assert entered.acquire(timeout=10)
        for runner in loop._worker._runners if not lives else ():
            assert runner.join(10)
        if lives:
            assert loop.facts().keys() == {"looked_s_ago", "listening", "listener_silent_s"}
        else:
            with pytest.raises(NotReady, match="2 threads that run jobs have ended"):
                loop.facts()
    finally:
        loop.stop()
        work.join()
