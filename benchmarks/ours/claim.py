"""Claims batches of 500 by our own claim, and finishes them unmeasured."""

from __future__ import annotations

import time

from benchmarks.processes import print_figures
from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.run import JobRun
from salon_jobs.models import Process

_BATCH = 500


def main(batches: str) -> None:
    """Claim so many batches."""
    process = Process.objects.create(kind="worker", hostname="benchmark", pid=1, concurrency=1)
    leases = Leases(process.pk, using="default")
    spent, claimed = 0.0, 0
    leases.claim_due(["nobody"], 1)  # connects
    for _ in range(int(batches)):
        began = time.perf_counter()
        jobs = leases.claim_due(registry.task_names(), _BATCH)
        spent += time.perf_counter() - began
        claimed += len(jobs)
        declared = [registry.get_declaration(job.task) for job in jobs]
        leases.finish_many([JobRun(*each, leases, leases.connection) for each in zip(jobs, declared, strict=True)])
    process.delete()
    print_figures(jobs=claimed, seconds=spent)
