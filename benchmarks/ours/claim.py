"""Claims batches of 500 by our own claim, and finishes them unmeasured."""

from __future__ import annotations

import time

from benchmarks.processes import print_figures
from salon_jobs.jobs import queries, registry
from salon_jobs.models import Process

_BATCH = 500


def main(batches: str) -> None:
    """Claim so many batches."""
    process = Process.objects.create(kind="worker", hostname="benchmark", pid=1, concurrency=1)
    spent, claimed = 0.0, 0
    queries.claim_due(process.pk, ["nobody"], 1)  # connects
    for _ in range(int(batches)):
        began = time.perf_counter()
        jobs = queries.claim_due(process.pk, registry.task_names(), _BATCH)
        spent += time.perf_counter() - began
        claimed += len(jobs)
        queries.finish_many(jobs, process.pk)
    process.delete()
    print_figures(jobs=claimed, seconds=spent)
