"""Supervisor of child processes: start, watch, rescue, restart and stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs.conf import settings as conf
from salon_jobs.core import events, metrics
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import NotReady
from salon_jobs.core.events import log_event, logger
from salon_jobs.core.metrics import Sample
from salon_jobs.process.heartbeat import Heartbeat, delete_row
from salon_jobs.tenancy.connections import log_lost, tidy_connections
from salon_jobs.worker.child_process import ChildPlan, ChildProcess, end_of
from salon_jobs.worker.in_flight import InFlightRun
from salon_jobs.worker.maintenance import rescue_process

_RETRY_S = 0.5
# A child younger than this died "at once"; from the second such death in a row, its slot stays empty for a while.
_YOUNG_S = 10.0
_RESTART = Backoff(base=timedelta(seconds=0.5), cap=timedelta(seconds=30), jitter=0.2)
_BURST_TRIES = 3
# How long the other runs of a child that must be killed may take to end.
_DRAIN_S = 2.0
# After the last of them leaves the table, its success still has to be written, with others, and logged.
_SETTLE_S = 0.25


class ChildSupervisor:
    """Thread that keeps one child alive until stopped; problems of another child never delay it."""

    def __init__(self, number: int, plan: ChildPlan, presence: Heartbeat, registered: threading.Event) -> None:
        self._plan = plan
        self._presence = presence
        self._registered = registered
        self._stopping = threading.Event()
        self._killed: dict[str, Any] | None = None
        self._draining_since: float | None = None
        self._alone_since: float | None = None
        self._thread = threading.Thread(target=self._keep, name=f"salon-jobs-keeper-{number}", daemon=True)
        self.child: ChildProcess | None = None
        self.deaths_at_once = 0
        self.clean = True

    def start(self) -> None:
        """Start the first child at once; it begins work when ``registered`` is set, once this process is registered."""
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the last child has ended and its jobs are rescued."""
        return not self._thread.is_alive()

    @property
    def dies_anew(self) -> int:
        """How many times in a row it died at once, as long as the present child may do so too."""
        child = self.child
        return self.deaths_at_once if child is None or child.lived_s < _YOUNG_S else 0

    def stop(self) -> None:
        """Ask the child to stop, and start no other; a second call forces it."""
        self._stopping.set()
        if self.child is not None:
            self.child.stop()

    def kill(self, reason: str, *, blameless: bool = False) -> None:
        """Kill the child at once; ``blameless``: its jobs are requeued without being charged."""
        child = self.child
        if child is not None and self._killed is None:
            self._killed = {"reason": reason, "blameless": blameless, "at": time.monotonic()}
            log_event(logging.WARNING, events.CHILD_KILLED, process_id=child.process_id, pid=child.pid, reason=reason)
            child.kill()

    def kill_if_overdue(self) -> None:
        """Kill a child that runs a job past its ``kill_at``, once its other jobs have ended or had some time to.

        Meanwhile it takes no new ones, if it can still receive messages.
        """
        child, now = self.child, time.monotonic()
        runs = [] if child is None else child.runs()
        late = sum(run.kill_at <= now for run in runs)
        if child is None or not late:
            return
        if self._draining_since is None:
            self._draining_since = now
            child.stop()
            return
        self._alone_since = None if late < len(runs) else self._alone_since or now
        settled = self._alone_since is not None and now - self._alone_since > _SETTLE_S
        if settled or now - self._draining_since > _DRAIN_S:
            self.kill("a job ran past its limit", blameless=True)

    def _keep(self) -> None:
        try:
            while not self._stopping.is_set():
                end, lived_s = self._live_once_whatever_happens()
                if self._plan.burst:
                    if end is None and self._draining_since is None:
                        return
                    if self.deaths_at_once >= _BURST_TRIES:
                        self.clean = False
                        return
                delay_s = self._delay_s()
                if end is not None and not self._stopping.is_set():
                    log_event(
                        logging.ERROR,
                        events.CHILD_DIED,
                        end=end,
                        lived_s=round(lived_s, 3),
                        restart_in_s=round(delay_s, 3),
                    )
                self._stopping.wait(delay_s)
        finally:
            connections.close_all()

    def _delay_s(self) -> float:
        return _RESTART.delay(self.deaths_at_once - 1).total_seconds() if self.deaths_at_once > 1 else 0.0

    def _live_once_whatever_happens(self) -> tuple[str | None, float]:
        try:
            return self._live_once()
        except Exception as error:  # for example too many processes; that must not leave the slot empty
            logger.exception("a worker process could not be started or buried")
            if (child := self.child) is not None:
                self._presence.drop(child.process_id)  # others rescue its jobs
                child.kill()
                child.wait()
                self.child = None
            self.deaths_at_once += 1
            return f"{type(error).__name__}: {error}", 0.0

    def _live_once(self) -> tuple[str | None, float]:
        """Start a child, wait until it has ended, and rescue its jobs.

        Returns how it ended (None: cleanly) and how long it lived.
        """
        self._killed = self._draining_since = self._alone_since = None
        child = self.child = ChildProcess(self._plan)
        self._registered.wait()
        if self._stopping.is_set():
            child.stop()
        else:
            self._despite_outages(lambda: self._register(child))
        status, lived_s = child.wait(), child.lived_s
        self.child = None
        # A handler can exit its process as if all were well; a child that exits properly has no job running.
        in_order = status == 0 and not child.runs()
        # An unrequested death is handled by the rescue; a child that had not begun to work ended cleanly enough.
        self.clean = in_order or not self._stopping.is_set() or child.report is None
        died_at_once = not in_order and self._killed is None and lived_s < _YOUNG_S
        self.deaths_at_once = self.deaths_at_once + 1 if died_at_once else 0
        if child.process_id:
            self._presence.drop(child.process_id)
            self._despite_outages(lambda: self._take_leave(child, status, in_order=in_order))
        child.close()
        return (None if in_order else end_of(status)), lived_s

    def _register(self, child: ChildProcess) -> None:
        plan = self._plan
        process_id = self._presence.register_child(
            plan.kind,
            child.pid,
            concurrency=plan.concurrency,
            queues=plan.queues,
            on_buried=lambda: self.kill("others took it for dead and have its jobs"),
        )
        child.start(process_id, **plan.options)

    def _take_leave(self, child: ChildProcess, status: int, *, in_order: bool) -> None:
        if in_order:
            delete_row(child.process_id)
            return
        runs = child.runs()
        overdue: list[InFlightRun] = []
        charged = [run.job_id for run in runs]
        if self._stopping.is_set() and status > 0:
            charged = []  # it gave its jobs back, or tried to
        elif self._killed is not None and self._killed["blameless"]:
            overdue, charged = [run for run in runs if run.kill_at <= self._killed["at"]], []
        rescue_process(child.process_id, None, end=end_of(status), charged=charged, overdue=overdue)

    def _despite_outages(self, work: Callable[[], None]) -> None:
        """Do the work, repeatedly until the database allows it. While stopping, others rescue our jobs eventually."""
        while True:
            tidy_connections()
            try:
                work()
            except (DatabaseError, InterfaceError) as error:
                log_lost(error, loop="supervise")
                if self._stopping.wait(_RETRY_S):
                    return
            else:
                return


_LOOK_S = 0.1
# Kill a child that has not ended by itself this long before the grace is over, so that its jobs can be given back.
_KILL_EARLY_S = 1.0
_FORCED_KILL_S = 2.5
_TRIES_UNTIL_TOLD = 3
# Reports come every second; an older one, from before a handler held the GIL, is outdated.
_FRESH_S = 5.0


class Supervisor:
    """Loop whose work is done by ``processes`` children. It runs no jobs: nothing a handler does can stop it."""

    def __init__(self, presence: Heartbeat, plan: ChildPlan, *, processes: int) -> None:
        """Start the children, so that they load while this process checks whether it may work."""
        self._registered = threading.Event()
        self._stopping = threading.Event()
        self._kill_at = float("inf")
        self._keepers = [ChildSupervisor(number, plan, presence, self._registered) for number in range(processes)]
        for keeper in self._keepers:
            keeper.start()

    def run(self) -> bool:
        """Supervise until the last child has ended; return True if each ended cleanly."""
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
        """Ask the children to stop; a second call forces it, and soon kills those that do not respond."""
        left_s = conf.shutdown_grace.total_seconds() - _KILL_EARLY_S
        if self._stopping.is_set():
            left_s = min(left_s, _FORCED_KILL_S)
        self._stopping.set()
        self._kill_at = min(self._kill_at, time.monotonic() + left_s)
        for keeper in self._keepers:
            keeper.stop()

    def facts(self) -> dict[str, object]:
        """Return each child's last report. Raises NotReady when none works, one reports a failure, or one keeps dying.

        A child that does not report is shown as silent and not considered dead while it runs a job, which may hold its
        GIL.
        """
        children = [(keeper, keeper.child) for keeper in self._keepers]
        for keeper, _ in children:
            if keeper.dies_anew >= _TRIES_UNTIL_TOLD:
                raise NotReady(f"a worker process died at once {keeper.dies_anew} times in a row; see the log")
        shown = [
            {
                "process_id": child.process_id,
                "pid": child.pid,
                "running": len(child.runs()),
                "silent_s": round(child.silent_s, 1),
                **child.report.get("facts", {}),
            }
            for _, child in children
            if child is not None and child.report is not None
        ]
        if not shown:
            raise NotReady("no worker process is ready yet")
        for _, child in children:
            if child is not None and child.report is not None and not child.runs():
                conf.require_alive(child.silent_s, f"worker process {child.process_id} runs nothing and says nothing")
            if child is not None and child.silent_s < _FRESH_S and child.report and "fault" in child.report:
                raise NotReady(f"worker process {child.process_id}: {child.report['fault']}")
        return {"processes": len(self._keepers), "children": shown}

    def samples(self) -> list[Sample]:
        """Return how many children have reported, what they run, the oldest claim and whether all receive wake-ups."""
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
