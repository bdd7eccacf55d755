"""Counts what a job costs the server from enqueue to end: statements, round trips, WAL, and what of its row is written.

Counts alone, no clocks, so that they are the same on every machine, however busy it is.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from uuid import UUID

from django.conf import settings
from django.db import connections, transaction
from django.test import override_settings

from salon_jobs import tenant_context
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import registry
from salon_jobs.jobs.enqueue import wake_ups
from salon_jobs.jobs.run import JobRun
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.executor import execute
from tests import tasks
from tests.support import change, chunk_of, leases_of, row_of, running_job, seen
from tests.tenancy.probe import traced
from tests.waiting import LIMIT_S

Spans: TypeAlias = dict[str, tuple[str, str]]
#: By part of a job, what that costs. The parts are the row, and what is sent to enqueue, claim, run and finish.
Costs: TypeAlias = dict[str, dict[str, Any]]
_TABLE: Final = "salon_jobs_job"
_FINISHES: Final = re.compile(f"salon_jobs_finish|DELETE FROM {_TABLE}")
# Enough that every index has its first page, and every function the plan that it keeps.
_BEFORE: Final = 10
_TRIES: Final = 3
# Of this database alone: the records about its relations, and the ends of their transactions. Left out are sequences,
# which write one record for 32 values; images of pages on which a reader has left hints; what a vacuum writes; and what
# is removed in passing, once no snapshot needs it, which depends on the snapshots of other databases as well.
_WAL: Final = """
WITH touched AS MATERIALIZED (
    SELECT start_lsn, xid, pg_filenode_relation(reltablespace, relfilenode) AS relation
      FROM pg_get_wal_block_info(%s, %s, false)
     WHERE reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND xid <> '0' AND resource_manager NOT IN ('Sequence', 'XLOG')
       AND concat_ws(' ', resource_manager, record_type) NOT IN ('Heap2 PRUNE_ON_ACCESS', 'Btree DELETE', 'Btree DEDUP')
), record AS (
    SELECT record_length, fpi_length
      FROM pg_get_wal_records_info(%s, %s)
     WHERE start_lsn IN (SELECT start_lsn FROM touched)
        OR (resource_manager = 'Transaction' AND xid IN (SELECT xid FROM touched))
)
SELECT count(*), coalesce(sum(record_length), 0)::int, coalesce(sum(fpi_length), 0)::int,
       ARRAY(SELECT DISTINCT replace(relname, 'salon_jobs_job_', '')
               FROM touched JOIN pg_class ON oid = relation WHERE relkind = 'i' ORDER BY 1)
  FROM record
"""


class ImagesWritten(Exception):
    """The WAL has images of whole pages, in place of what it would say otherwise: there was a checkpoint meanwhile."""


@dataclass(frozen=True, slots=True)
class Case:
    """Jobs of one task that are enqueued, claimed and ended together; ``values`` follow the store as arguments."""

    task: Any
    count: int = 1
    values: tuple[Any, ...] = ()

    @property
    def is_of_store(self) -> bool:
        """Whether they are a store's."""
        return bool(self.task.task.is_store_task)

    def enqueue(self, store: UUID) -> None:
        """Add them as a web process does, in a transaction of the store if they are its own."""
        arguments = (store, *self.values) if self.is_of_store else self.values
        with tenant_context(store) if self.is_of_store else nullcontext():
            if self.count == 1:
                self.task.enqueue(*arguments)
            else:
                self.task.enqueue_many(self.task.call(*arguments) for _ in range(self.count))

    def claim(self, process_id: int) -> list[ClaimedJob]:
        """Claim them as an idle worker does whom one job has woken, or as one that has a backlog."""
        leases = leases_of(process_id, is_direct=True)
        if self.count == 1:
            return leases.claim_due(registry.task_names(), 64)
        return Claimer(leases, None).claim_fairly(self.count).jobs

    def run(self, jobs: Sequence[ClaimedJob], process_id: int, found: Costs) -> list[JobRun]:
        """Run them as a worker's thread does, to which its session belongs: in one chunk, or one after the other.

        A chunk has all of them, however many its task allows.
        """
        in_chunk = self.task.task.chunk is not None
        runs = [chunk_of(jobs, process_id)] if in_chunk else [running_job(job, process_id) for job in jobs]
        with _sent(found, "run"):
            for run in runs:
                run.resets_session = True
                outcome = execute(run)
                assert isinstance(outcome, Succeeded)
                assert outcome.finished is self.is_of_store
        return list(runs)


CASES: Final = {
    f"{kind}.{number}": replace(case, count=count)
    for kind, case in (
        ("plain", Case(tasks.system)),
        ("store", Case(tasks.in_store)),
        ("chunk", Case(tasks.in_chunks, values=(tasks.Sale(1),))),
    )
    for number, count in (("one", 1), ("hundred", 100))
}


def costs(case: Case, store: UUID, process_id: int) -> Costs:
    """Run the jobs of a case from enqueue to end, on a table without dead rows, and return what that costs.

    On connections of its own: where another test has left a wrapper, or a log of queries, an enqueue takes two round
    trips. Leaves the job table empty.
    """
    for alias in ("default", "web"):
        connections[alias].close()
        del connections[alias]
    with ThreadPoolExecutor(1) as runner, override_settings(DEBUG=False):
        try:
            for tries_left in reversed(range(_TRIES)):
                change(f"TRUNCATE {_TABLE} RESTART IDENTITY")
                for each in (*[replace(case, count=1)] * _BEFORE, case):
                    _measured(each, store, process_id, runner)
                change(f"VACUUM {_TABLE}")
                try:
                    return _with_wal(*_measured(case, store, process_id, runner))
                except ImagesWritten:
                    if not tries_left:
                        raise
        finally:
            runner.submit(connections.close_all).result(LIMIT_S)
            change(f"TRUNCATE {_TABLE} RESTART IDENTITY")
    raise AssertionError  # the last try returns or raises


def _measured(case: Case, store: UUID, process_id: int, runner: ThreadPoolExecutor) -> tuple[Costs, Spans]:
    """Run the jobs; return what they cost without WAL, and between which places of the WAL that of each part is."""
    found: Costs = {part: {"statements": 0, "trips": 0} for part in ("enqueue", "claim", "run", "finish")}
    spans: Spans = {}
    wake_ups.reset()  # of many commits, some would send none
    with (
        override_settings(SALON_JOBS={**settings.SALON_JOBS, "DATABASE": "web"}),
        _written(spans, "enqueue"),
        _sent(found, "enqueue", "web"),
    ):
        case.enqueue(store)
    [(job_id, size)] = seen(f"SELECT id, pg_column_size(j) FROM {_TABLE} j ORDER BY id LIMIT 1")
    added = row_of(job_id)
    with _written(spans, "claim"), _sent(found, "claim"):
        jobs = case.claim(process_id)
    assert len(jobs) == case.count
    claimed = row_of(job_id)
    # The handlers write nothing: all of it is of the ends.
    with _written(spans, "finish"):
        runs = runner.submit(case.run, jobs, process_id, found).result(LIMIT_S)
        if not case.is_of_store:
            with _sent(found, "finish"):
                assert len(leases_of(process_id, is_direct=True).finish_many(runs)) == case.count
    assert seen(f"SELECT count(*) FROM {_TABLE}") == [(0,)]
    row = {
        "bytes": size,
        "columns": sum(value is not None for value in added.values()),
        "changed_by_claim": sorted(name for name, value in added.items() if claimed[name] != value),
    }
    return {"row": row, **found}, spans


@contextmanager
def _sent(found: Costs, part: str, alias: str = "default") -> Generator[None]:
    """Count what is sent meanwhile: for this part, or to finish, if that is what it does."""
    with traced(connections[alias]) as messages:
        yield
    at = part
    for message in messages:
        if "\tQuery\t" in message or "\tParse\t" in message:
            at = "finish" if _FINISHES.search(message) else part
        found[at]["statements"] += "\tCommandComplete\t" in message
        found[at]["trips"] += "\tReadyForQuery\t" in message


@contextmanager
def _written(spans: Spans, part: str) -> Generator[None]:
    """Keep where in the WAL what is written meanwhile begins and ends."""
    begin = _end_of_wal()
    yield
    spans[part] = (begin, _end_of_wal())


def _end_of_wal() -> str:
    return str(seen("SELECT pg_current_wal_insert_lsn()")[0][0])


def _with_wal(found: Costs, spans: Spans) -> Costs:
    """Add the WAL of each part. Raises ImagesWritten, and the server's error if it lacks the extension."""
    with transaction.atomic(using="owner"):
        change("CREATE EXTENSION pg_walinspect")
        for part, (begin, end) in spans.items():
            [(records, size, images, indexes)] = seen(_WAL, begin, end, begin, end)
            if images:
                raise ImagesWritten(f"{part}: {images} bytes")
            found[part] |= {"records": records, "bytes": size, "indexes": indexes}
        transaction.set_rollback(True, using="owner")
    return found
