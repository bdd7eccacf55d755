"""Supervises the processes that run jobs: keeps them alive, ends them in order, and tells how they are."""

from __future__ import annotations

import threading
import time

from salon_jobs.conf import settings as conf
from salon_jobs.core import metrics
from salon_jobs.core.errors import NotReady
from salon_jobs.core.metrics import Sample
from salon_jobs.runtime.child_process import ChildPlan
from salon_jobs.runtime.keeper import Keeper
from salon_jobs.runtime.presence import Presence

_LOOK_S = 0.1
# A child that has not ended by itself is killed this long before the grace is over, so that its jobs can be given back.
_KILL_EARLY_S = 1.0
_FORCED_KILL_S = 2.5
_TRIES_UNTIL_TOLD = 3
# Reports come every second; what a child that holds its GIL said before is no news.
_FRESH_S = 5.0


class Supervisor:
    """Is a loop whose work is done by ``processes`` children. It runs no job: nothing a handler does stops it."""

    def __init__(self, presence: Presence, plan: ChildPlan, *, processes: int) -> None:
        """Start the children, so that they load while this process looks whether it may work."""
        self._registered = threading.Event()
        self._stopping = threading.Event()
        self._kill_at = float("inf")
        self._keepers = [Keeper(number, plan, presence, self._registered) for number in range(processes)]
        for keeper in self._keepers:
            keeper.start()

    def run(self) -> bool:
        """Supervise until the last child has ended; True when each ended in order."""
        self._registered.set()
        while not all(keeper.ended for keeper in self._keepers):
            for keeper in self._keepers:
                if time.monotonic() > self._kill_at:
                    keeper.kill("its grace is over", blameless=True)
                elif not self._stopping.is_set():
                    keeper.kill_if_overdue()
            time.sleep(_LOOK_S)
        return all(keeper.clean for keeper in self._keepers)

    def stop(self) -> None:
        """Ask the children to stop; a second call forces it, and kills those that feel nothing soon after."""
        left_s = conf.shutdown_grace.total_seconds() - _KILL_EARLY_S
        if self._stopping.is_set():
            left_s = min(left_s, _FORCED_KILL_S)
        self._stopping.set()
        self._kill_at = min(self._kill_at, time.monotonic() + left_s)
        for keeper in self._keepers:
            keeper.stop()

    def facts(self) -> dict[str, object]:
        """Return what each child said last. Raises NotReady when none works, or one says that it can not, or dies anew.

        A child that says nothing is shown as silent and not called dead while it runs a job, which may hold its GIL.
        """
        children = [(keeper, keeper.child) for keeper in self._keepers]
        for keeper, _ in children:
            if keeper.dies_anew >= _TRIES_UNTIL_TOLD:
                raise NotReady(f"a worker process died at once {keeper.dies_anew} times in a row; see the log")
        shown = [
            {
                "process_id": child.process_id, "pid": child.pid, "running": len(child.runs()),
                "silent_s": round(child.silent_s, 1), **child.report.get("facts", {}),
            }
            for _, child in children
            if child is not None and child.report is not None
        ]  # fmt: skip
        if not shown:
            raise NotReady("no worker process is ready yet")
        for _, child in children:
            if child is not None and child.report is not None and not child.runs():
                conf.readiness.require(
                    "loop_stale", child.silent_s, f"worker process {child.process_id} runs nothing and says nothing"
                )
            if child is not None and child.silent_s < _FRESH_S and child.report and "fault" in child.report:
                raise NotReady(f"worker process {child.process_id}: {child.report['fault']}")
        return {"processes": len(self._keepers), "children": shown}

    def samples(self) -> list[Sample]:
        """Return how many children have reported, what they run, the oldest claim and whether all hear wake-ups."""
        children = [child for keeper in self._keepers if (child := keeper.child) is not None]
        told = [(child.silent_s, child.report.get("facts", {})) for child in children if child.report is not None]
        samples = [
            Sample(metrics.PROCESSES, len(told)),
            Sample(metrics.RUNNING, sum(len(child.runs()) for child in children)),
        ]
        ages = [silent_s + facts["looked_s_ago"] for silent_s, facts in told if "looked_s_ago" in facts]
        if ages:
            samples.append(Sample(metrics.LOOP_AGE, max(ages), ("claim",)))
        heard = [facts["listening"] for _, facts in told if facts.get("listening", "off") != "off"]
        if heard:
            samples.append(Sample(metrics.LISTENING, min(heard), ("claim",)))
        return samples
