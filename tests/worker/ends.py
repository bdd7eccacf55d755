"""Statements that end a run, or ask about its end, each as a function of the job and its process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from salon_jobs.core.error_report import report
from salon_jobs.core.errors import Expired
from salon_jobs.core.records import ClaimedJob, KeptResult
from tests.support import finish, finish_many, leases_of

Statement = Callable[[ClaimedJob, int], object]
NOW, ERROR = timedelta(0), report(ValueError("no"))
RESULT = KeptResult('"done"', timedelta(hours=1), ran_s=0)

# Those after which a job can be queued again.
RETURNS: dict[str, Statement] = {
    "fail": lambda job, process_id: leases_of(process_id).fail(job, ERROR, delay=NOW, final=False, reason="spent"),
    "snooze": lambda job, process_id: leases_of(process_id).requeue([(job.id, job.lease)], delay=NOW),
    "release": lambda job, process_id: leases_of(process_id).requeue([(job.id, job.lease)]),
    "rescue": lambda _, process_id: leases_of(process_id).rescue("went silent"),
}
FINAL: dict[str, Statement] = {
    "finish": finish,
    "finish with a result": lambda job, process_id: finish(job, process_id, RESULT),
    "finish many": lambda job, process_id: finish_many([job], process_id),
    "finish many with results": lambda job, process_id: finish_many([job], process_id, RESULT),
    "fail at last": lambda job, process_id: leases_of(process_id).fail(
        job, ERROR, delay=NOW, final=True, reason="spent"
    ),
    "cancel": lambda job, process_id: leases_of(process_id).cancel_run(job, "cancelled"),
    "expire": lambda job, process_id: leases_of(process_id).expire_run(job, report(Expired()), "expired"),
}
QUESTIONS: dict[str, Statement] = {
    "owned": lambda job, process_id: leases_of(process_id).owned([job]),
    "failed by": lambda job, process_id: leases_of(process_id).failed_by(job),
    "leased": lambda job, process_id: leases_of(process_id).leased_job(job.id, job.lease),
}
ENDS = {**RETURNS, **FINAL}
FENCED = {name: end for name, end in {**ENDS, **QUESTIONS}.items() if name != "rescue"}
