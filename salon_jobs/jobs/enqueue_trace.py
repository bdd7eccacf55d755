"""Gives what an enqueue writes the trace it belongs to."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from salon_jobs.core.records import NewJob
from salon_jobs.core.tracing import SYSTEM, Sent, active_tracers, current_trace, sending


@contextmanager
def enqueuing(job: NewJob) -> Generator[tuple[NewJob, Sent]]:
    """Surround the statement that adds jobs like ``job``; gives it with its trace, and what the caller completes.

    One that has a trace already keeps it.
    """
    sent = Sent(emitted=False, system=SYSTEM, destination=job.queue, name=job.task)
    if job.trace is not None or not active_tracers():
        yield job, sent
        return
    sent.body_size = len(job.payload.encode())
    with sending(sent):
        yield replace(job, trace=current_trace()), sent
