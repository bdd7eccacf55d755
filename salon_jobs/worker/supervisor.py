"""Supervisor of child processes: start, watch, rescue, restart and stop."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any

from salon_jobs.conf import settings as conf
from salon_jobs.core import events, metrics
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import NotReady
from salon_jobs.core.events import log_event, logger
from salon_jobs.core.metrics import Sample
from salon_jobs.process.heartbeat import Heartbeat, delete_row
from salon_jobs.process.loop import Loop
from salon_jobs.worker.child import KIND
from salon_jobs.worker.child_process import ChildPlan, ChildProcess, describe_end
from salon_jobs.worker.in_flight import InFlightRun
from salon_jobs.worker.maintenance import rescue_process

# A child younger than this died "at once"; from the second such death in a row, its slot stays empty for a while.
_YOUNG_S = 10.0
_RESTART = Backoff(base=timedelta(seconds=0.5), cap=timedelta(seconds=30), jitter=0.2)
_BURST_TRIES = 3
# How long the other runs of a child that must be killed may take to end.
_DRAIN_S = 2.0
# After the last of them leaves the table, its success still has to be written, with others, and logged.
_SETTLE_S = 0.25


class ChildSupervisor(Loop):
    """Loop that keeps one child alive until stopped; problems of another child never delay it.

    A round is the life of one child. It begins work when ``registered`` is set, once this process is registered.
    """

    def __init__(self, number: int, plan: ChildPlan, heartbeat: Heartbeat, registered: threading.Event) -> None:
        super().__init__(f"child {number}")
        self._plan = plan
        self._heartbeat = heartbeat
        self._registered = registered
        self._killed: dict[str, Any] | None = None
        self._draining_since: float | None = None
        self._alone_since: float | None = None
        self.child: ChildProcess | None = None
        self.early_deaths = 0
        self.is_clean = True

    @property
    def lasting_early_deaths(self) -> int:
        """How many times in a row it died at once, as long as the present child may do so too."""
        child = self.child
        return self.early_deaths if child is None or child.lived_s < _YOUNG_S else 0

    def stop(self) -> None:
        """Ask the child to stop, and start no other; a second call forces it."""
        super().stop()
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
        is_settled = self._alone_since is not None and now - self._alone_since > _SETTLE_S
        if is_settled or now - self._draining_since > _DRAIN_S:
            self.kill("a job ran past its limit", blameless=True)

    def poll(self) -> float:
        """Start a child, wait until it has ended, and rescue its jobs; return the wait before the next one."""
        lived_s = 0.0
        try:
            end, lived_s = self._run_child()
        except Exception as error:  # for example too many processes; that must not leave the slot empty
            logger.exception("a worker process could not be started, or its jobs not rescued")
            if (child := self.child) is not None:
                self._heartbeat.drop(child.process_id)  # others rescue its jobs
                child.kill()
                child.wait()
                self.child = None
            self.early_deaths += 1
            end = f"{type(error).__name__}: {error}"
        if self._plan.options.burst:
            is_done = end is None and self._draining_since is None
            if not is_done and self.early_deaths >= _BURST_TRIES:
                self.is_clean = False
                is_done = True
            if is_done:
                self.stopping.set()
        wait_s = _RESTART.delay(self.early_deaths - 1).total_seconds() if self.early_deaths > 1 else 0.0
        if end is not None and not self.stopping.is_set():
            fields: dict[str, Any] = {"lived_s": round(lived_s, 3), "restart_in_s": round(wait_s, 3)}
            log_event(logging.ERROR, events.CHILD_DIED, end=end, **fields)
        return wait_s

    def _run_child(self) -> tuple[str | None, float]:
        """Run one child to its end and rescue its jobs; return how it ended (None: cleanly) and how long it lived."""
        self._killed = self._draining_since = self._alone_since = None
        child = self.child = ChildProcess(self._plan)
        self._registered.wait()
        if self.stopping.is_set():
            child.stop()
        else:
            self.outage.wait_out(lambda: self._register(child), self.stopping.wait)
        status, lived_s = child.wait(), child.lived_s
        self.child = None
        # A handler can exit its process as if all were well; a child that exits properly has no job running.
        in_order = status == 0 and not child.runs()
        # An unrequested death is handled by the rescue; a child that had not begun to work ended cleanly enough.
        self.is_clean = in_order or not self.stopping.is_set() or child.report is None
        died_early = not in_order and self._killed is None and lived_s < _YOUNG_S
        self.early_deaths = self.early_deaths + 1 if died_early else 0
        if child.process_id:
            self._heartbeat.drop(child.process_id)
            # While stopping, it is tried once: others rescue its jobs eventually.
            self.outage.wait_out(lambda: self._sign_off(child, status, in_order=in_order), self.stopping.wait)
        child.close()
        return (None if in_order else describe_end(status)), lived_s

    def _register(self, child: ChildProcess) -> None:
        options = self._plan.options
        process_id = self._heartbeat.register_child(
            KIND,
            child.pid,
            concurrency=options.concurrency,
            queues=options.queues,
            on_dead=lambda: self.kill("others declared it dead and have its jobs"),
        )
        child.start(process_id)

    def _sign_off(self, child: ChildProcess, status: int, *, in_order: bool) -> None:
        if in_order:
            delete_row(child.process_id)
            return
        runs = child.runs()
        overdue: list[InFlightRun] = []
        charged = [run.job_id for run in runs]
        if self.stopping.is_set() and status > 0:
            charged = []  # it gave its jobs back, or tried to
        elif self._killed is not None and self._killed["blameless"]:
            overdue, charged = [run for run in runs if run.kill_at <= self._killed["at"]], []
        rescue_process(child.process_id, None, end=describe_end(status), charged=charged, overdue=overdue)


_POLL_S = 0.1
# Kill a child that has not ended by itself this long before the grace is over, so that its jobs can be given back.
_KILL_EARLY_S = 1.0
_FORCED_KILL_S = 2.5
_EARLY_DEATHS = 3
# Reports come every second; an older one, from before a handler held the GIL, is outdated.
_FRESH_S = 5.0


class Supervisor:
    """Loop whose work is done by ``processes`` children. It runs no jobs: nothing a handler does can stop it."""

    def __init__(self, heartbeat: Heartbeat, plan: ChildPlan, *, processes: int) -> None:
        """Start the children, so that they load while this process checks whether it may work."""
        self._registered = threading.Event()
        self._stopping = threading.Event()
        self._kill_at = float("inf")
        self._supervisors = [ChildSupervisor(number, plan, heartbeat, self._registered) for number in range(processes)]
        for supervisor in self._supervisors:
            supervisor.start()

    def run(self) -> bool:
        """Supervise until the last child has ended; return True if each ended cleanly."""
        self._registered.set()
        while any(supervisor.is_alive for supervisor in self._supervisors):
            for supervisor in self._supervisors:
                if time.monotonic() > self._kill_at:
                    supervisor.kill("its grace is over", blameless=True)
                elif not self._stopping.is_set():
                    supervisor.kill_if_overdue()
            time.sleep(_POLL_S)
        return all(supervisor.is_clean for supervisor in self._supervisors)

    def stop(self) -> None:
        """Ask the children to stop; a second call forces it, and soon kills those that do not respond."""
        remaining_s = conf.shutdown_grace.total_seconds() - _KILL_EARLY_S
        if self._stopping.is_set():
            remaining_s = min(remaining_s, _FORCED_KILL_S)
        self._stopping.set()
        self._kill_at = min(self._kill_at, time.monotonic() + remaining_s)
        for supervisor in self._supervisors:
            supervisor.stop()

    def facts(self) -> dict[str, object]:
        """Return each child's last report. Raises NotReady when none works, one reports a failure, or one keeps dying.

        A child that does not report is shown as silent and not considered dead while it runs a job, which may hold its
        GIL.
        """
        for supervisor in self._supervisors:
            if supervisor.lasting_early_deaths >= _EARLY_DEATHS:
                raise NotReady(
                    f"a worker process died at once {supervisor.lasting_early_deaths} times in a row; see the log"
                )
        reporting = [(child, child.report) for child in self._children() if child.report is not None]
        if not reporting:
            raise NotReady("no worker process is ready yet")
        for child, report in reporting:
            name = f"worker process {child.process_id}"
            if not child.runs():
                conf.require_alive(child.silent_s, f"{name} runs nothing and says nothing")
            if child.silent_s < _FRESH_S and "fault" in report:
                raise NotReady(f"{name}: {report['fault']}")
        shown = [
            {
                "process_id": child.process_id,
                "pid": child.pid,
                "running": len(child.runs()),
                "silent_s": round(child.silent_s, 1),
                **report.get("facts", {}),
            }
            for child, report in reporting
        ]
        return {"processes": len(self._supervisors), "children": shown}

    def samples(self) -> list[Sample]:
        """Return how many children have reported, what they run, the oldest claim and whether all receive wake-ups."""
        children = self._children()
        reports = [(child.silent_s, child.report.get("facts", {})) for child in children if child.report is not None]
        samples = [
            Sample(metrics.PROCESSES, len(reports)),
            Sample(metrics.RUNNING, sum(len(child.runs()) for child in children)),
        ]
        ages = [silent_s + facts["claimed_s_ago"] for silent_s, facts in reports if "claimed_s_ago" in facts]
        if ages:
            samples.append(Sample(metrics.LOOP_AGE, max(ages), ("claim",)))
        listening = [facts["listening"] for _, facts in reports if facts.get("listening", "off") != "off"]
        if listening:
            samples.append(Sample(metrics.LISTENING, min(listening), ("claim",)))
        return samples

    def _children(self) -> list[ChildProcess]:
        return [child for supervisor in self._supervisors if (child := supervisor.child) is not None]
