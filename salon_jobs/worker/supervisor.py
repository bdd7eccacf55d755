"""Supervisor of the processes that run jobs, with maintenance and embedded loops alongside."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from salon_jobs.conf import settings as conf
from salon_jobs.core import events, metrics
from salon_jobs.core.errors import NotReady, did_you_mean
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import OTHER, Sample, Timings
from salon_jobs.core.text import short_repr
from salon_jobs.core.units import with_noun
from salon_jobs.core.vital import exits_on_error
from salon_jobs.db.pools import refuse_small_pool
from salon_jobs.jobs import registry
from salon_jobs.jobs.statistics import OUTCOMES, RunCounts, ended_runs
from salon_jobs.process.heartbeat import Heartbeat
from salon_jobs.process.preflight import connections_left
from salon_jobs.process.probe import Probe
from salon_jobs.process.processors import usable_processors
from salon_jobs.process.service import ServedLoop
from salon_jobs.worker.child_process import FRESH_S, ChildPlan, ChildProcess, ChildSupervisor
from salon_jobs.worker.in_flight import IdleTable, shared_file
from salon_jobs.worker.maintenance import Maintenance
from salon_jobs.worker.worker import WorkerOptions


class RunTotals:
    """Thread-safe totals of runs. Tasks that this process does not know are grouped as ``other``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claimed = 0
        self._by_task: dict[str, RunCounts] = {}

    def add(self, rows: Iterable[Mapping[str, Any]], *, claimed: int = 0) -> None:
        """Add one report: rows of ``TaskStatistics.take_report``, and the number of jobs claimed since the last."""
        with self._lock:
            self._claimed += claimed
            for row in rows:
                task = row["task"] if row["task"] in registry.task_names() else OTHER
                outcomes = [row[name] for name in OUTCOMES]
                counts = RunCounts(outcomes, row["duration_s"], row["durations"], row["wait_s"], row["waits"])
                self._by_task.setdefault(task, RunCounts()).add(counts)

    @property
    def runs(self) -> int:
        """How many runs have ended."""
        with self._lock:
            return sum(sum(counts.outcomes) for counts in self._by_task.values())

    def samples(self) -> list[Sample]:
        with self._lock:
            samples = [Sample(metrics.CLAIMED, self._claimed)]
            # A counter that first appears at five hides those five from rate().
            for task in sorted({*registry.task_names(), *self._by_task}):
                total = self._by_task.get(task, RunCounts())
                samples += [
                    Sample(metrics.FINISHED, count, (task, outcome))
                    for outcome, count in zip(OUTCOMES, total.outcomes, strict=True)
                ]
            for task, total in self._by_task.items():
                samples.append(Sample(metrics.DURATION, Timings(list(total.durations), total.duration_s), (task,)))
                samples.append(Sample(metrics.WAIT, Timings(list(total.waits), total.wait_s), (task,)))
        return samples


_POLL_S = 0.1
# Kill a child that has not ended by itself this long before the grace is over, so that its jobs can be given back.
_KILL_EARLY_S = 1.0
_FORCED_KILL_S = 2.5
_EARLY_DEATHS = 3
# Heartbeat and maintenance. Two health checks at a time, each embedded loop and each child's supervisor may add to it.
_CONNECTIONS = 2
_THREADS = _CONNECTIONS + 2
# Connections in total, and remaining, of a default PostgreSQL: for a server that cannot be asked.
_USUAL_CONNECTIONS = 97, 97


def connections_of(processes: int, options: WorkerOptions) -> int:
    """Return how many connections a worker opens, without embedded loops."""
    return processes * options.threads + _CONNECTIONS


def threads_of(processes: int, options: WorkerOptions, *, embedded: int = 0) -> int:
    """Return how many threads of one process of a worker, the supervisor or a child, may hold a connection."""
    return max(_THREADS + embedded + processes, options.threads)


def count_processes(asked: int | None, options: WorkerOptions, *, using: str) -> int:
    """Return how many processes to start; log a warning if connections are too few for them, or for one per processor.

    By default one for each usable processor, as long as all take at most half of the server's connections, so that web
    processes and a second worker find theirs, and no more than remain; at least one. Behind a pooler (``LISTEN`` is not
    True), which has its own limits, nothing is asked.
    """
    wanted = asked or usable_processors()
    if conf.listen is not True:
        return wanted
    whose = "the server's"
    try:
        total, left = Probe(lambda: connections_left(using)).answer()
    except NotReady:
        if asked is not None:
            return asked
        whose, total, left = "the usual", *_USUAL_CONNECTIONS
    share = min(total // 2, left)
    fitting = (share - _CONNECTIONS) // options.threads
    processes = asked or max(1, min(wanted, fitting))
    if (needed := connections_of(processes, options)) > left:
        _warn_of(
            needed,
            left,
            f"the worker opens up to {needed} connections and the server, the database or the role allows {left} more:"
            " start it with fewer --processes or a lower --concurrency (SALON_JOBS['PROCESSES'] and ['CONCURRENCY']),"
            " or raise max_connections or the CONNECTION LIMIT",
        )
    elif processes < wanted:
        needed = connections_of(wanted, options)
        _warn_of(
            needed,
            share,
            f"the worker starts {with_noun(processes, 'process', 'processes')} for {wanted} processors: one for each"
            f" would open up to {needed} connections, and it takes at most {share}: half of {whose} {total}, if as many"
            " are left. Say how many to start (--processes, SALON_JOBS['PROCESSES']), raise max_connections or the"
            " CONNECTION LIMIT, or put a pooler in between",
        )
    return processes


def _warn_of(needed: int, allowed: int, detail: str) -> None:
    log_event(logging.WARNING, events.CONNECTIONS_SHORT, connections=needed, allowed=allowed, detail=detail)


class Supervisor:
    """Loop that leaves the work to its children. It runs no jobs, so a handler cannot stop it.

    Each ``embedded`` loop (scheduler, relay, consumer) runs in a thread of this process.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        command: Sequence[str],
        options: WorkerOptions,
        *,
        processes: int,
        embedded: Sequence[ServedLoop] = (),
    ) -> None:
        """Start the children, so that they load while this process checks whether it may work.

        Raises ConfigurationError when a pool is too small for their threads or ours.
        """
        refuse_small_pool(threads_of(processes, options, embedded=len(embedded)), using=heartbeat.using)
        self._burst, self._queues = options.burst, options.queues or ()
        self._totals = RunTotals()
        self._maintenance = Maintenance(using=heartbeat.using, burst=options.burst)
        self._embedded = tuple(embedded)
        self._registered = threading.Event()
        self._stopping = threading.Event()
        self._kill_at = float("inf")
        self._idle = shared_file(IdleTable.size(processes))  # open as long as this process lives
        plan = ChildPlan(
            command, options, lambda counted: self._totals.add(**counted), processes=processes, idle=self._idle.fileno()
        )
        self._children = [ChildSupervisor(number, plan, heartbeat, self._registered) for number in range(processes)]
        for child in self._children:
            child.start()

    def run(self) -> bool:
        """Supervise until the last child has ended; return True if every job ended or was given back in time.

        A burst logs how many jobs it ran.
        """
        self._maintenance.start()
        threads = [
            threading.Thread(
                target=exits_on_error(loop.run), name=f"salon-jobs-{type(loop).__name__.lower()}", daemon=True
            )
            for loop in self._embedded
        ]
        for thread in threads:
            thread.start()
        try:
            self._registered.set()
            while any(child.is_alive for child in self._children):
                for child in self._children:
                    if time.monotonic() > self._kill_at:
                        child.kill("its grace is over", blameless=True)
                    elif not self._stopping.is_set():
                        child.kill_if_overdue()
                        child.kill_if_stuck()
                time.sleep(_POLL_S)
            if self._burst:
                self._report_burst()
            return all(child.is_clean for child in self._children)
        finally:
            if not self._stopping.is_set():  # a second call would force them to end
                self._stop_embedded()
            for thread in threads:
                thread.join()
            self._maintenance.stop()
            self._maintenance.join()
            self._idle.close()

    def stop(self) -> None:
        """Ask the children to stop; a second call forces it, and soon kills those that do not respond."""
        remaining_s = conf.shutdown_grace.total_seconds() - _KILL_EARLY_S
        if self._stopping.is_set():
            remaining_s = min(remaining_s, _FORCED_KILL_S)
        else:
            running = sum(len(child.runs()) for child in self._processes())
            log_event(logging.INFO, events.WORKER_STOPPING, running=running)
        self._stopping.set()
        self._stop_embedded()
        self._kill_at = min(self._kill_at, time.monotonic() + remaining_s)
        for child in self._children:
            child.stop()

    def facts(self) -> dict[str, object]:
        """Return queue lag, unknown tasks, each child's last report, and the facts of the embedded loops.

        Raises NotReady when no child works, one reports a fault, or one keeps dying. A child that does not report is
        shown as silent, but not considered dead while it runs a job, which may hold its GIL.
        """
        self._maintenance.require_ready()
        for supervisor in self._children:
            if supervisor.lasting_early_deaths >= _EARLY_DEATHS:
                raise NotReady(
                    f"a worker process died at once {supervisor.lasting_early_deaths} times in a row; see the log"
                )
        reporting = [(child, child.report) for child in self._processes() if child.report is not None]
        if not reporting:
            raise NotReady("no worker process is ready yet")
        for child, report in reporting:
            name = f"worker process {child.process_id}"
            if not child.runs():
                conf.require_alive(child.silent_s, f"{name} runs nothing and says nothing")
            if child.silent_s < FRESH_S and "fault" in report:
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
        front = self._maintenance.front
        facts: dict[str, object] = {
            "lag_s": round(front.lag_s, 3),
            "unknown_tasks": list(front.unknown_tasks),
            "processes": len(self._children),
            "children": shown,
        }
        for loop in self._embedded:
            facts |= loop.facts()
        return facts

    def samples(self) -> list[Sample]:
        """Return the metrics of the children, their runs, the queues and the embedded loops."""
        children = self._processes()
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
        self._totals.add(ended_runs.take_report())  # counted in this process: jobs of children that died
        samples += [*self._totals.samples(), *self._maintenance.samples()]
        for loop in self._embedded:
            samples += loop.samples()
        return samples

    def _report_burst(self) -> None:
        """Log how many runs ended; if none did, also the queues without a task: their names may be misspelt."""
        runs, known = self._totals.runs, registry.queue_names()
        unknown = [f"{short_repr(name)}{did_you_mean(name, known)}" for name in self._queues if name not in known]
        if runs or not unknown:
            log_event(logging.INFO, events.BURST_ENDED, runs=runs)
        else:
            detail = f"no task of this release names queue {', '.join(unknown)}; its queues: {', '.join(sorted(known))}"
            log_event(logging.WARNING, events.BURST_ENDED, runs=runs, detail=detail)

    def _stop_embedded(self) -> None:
        for loop in self._embedded:
            loop.stop()

    def _processes(self) -> list[ChildProcess]:
        return [process for child in self._children if (process := child.process) is not None]
