"""Write two checks and a guard of jobs shorter: the server reads their text again for each statement.

They allow the same rows as the old ones, so existing rows need no check under these locks: the next migration does that
outside of them.
"""

from datetime import UTC, datetime
from typing import ClassVar

from django.db import migrations
from django.db.models import CheckConstraint, Q
from django.db.models.functions import Greatest, Least
from django.db.models.lookups import GreaterThanOrEqual, LessThanOrEqual
from pgtrigger.compiler import Trigger, UpsertTriggerSql
from pgtrigger.migrations import RemoveTrigger

from salon_jobs.access.operations.base import AddGuard, JobTablesMigration

_EARLIEST, _LATEST = "'0001-01-02 00:00:00+00:00'::timestamptz", "'9999-12-30 00:00:00+00:00'::timestamptz"
_INSTANTS = (
    *("created_at", "run_at", "started_at", "claimed_at", "begun_once_at", "expires_at"),
    *("tick", "finished_at", "cancel_requested_at"),
)
_REPLACE = """
ALTER TABLE salon_jobs_job
    DROP CONSTRAINT salon_jobs_job_state,
    DROP CONSTRAINT salon_jobs_job_instants,
    ADD CONSTRAINT salon_jobs_job_state CHECK ({state}) NOT VALID,
    ADD CONSTRAINT salon_jobs_job_instants CHECK ({instants}) NOT VALID
"""
_NEW_STATE = """
    (finished_at IS NULL AND reason = ''
     AND ((begun_once_at IS NULL AND cancel_requested_at IS NULL AND leased_by IS NULL AND state = 'queued')
          OR (lease > 0 AND leased_by > 0 AND leased_by IS NOT NULL AND leased_by < 9223372036854775807
              AND started_at IS NOT NULL AND state = 'running')))
    OR (finished_at IS NOT NULL AND leased_by IS NULL
        AND ((reason = '' AND started_at IS NOT NULL AND state = 'succeeded')
             OR (cancel_requested_at IS NULL AND error_class IS NOT NULL AND started_at IS NOT NULL
                 AND state = 'failed' AND NOT (reason = ''))
             OR state = 'cancelled'))
"""
_OLD_STATE = """
    (begun_once_at IS NULL AND cancel_requested_at IS NULL AND finished_at IS NULL AND leased_by IS NULL
     AND reason = '' AND state = 'queued')
    OR (finished_at IS NULL AND lease > 0 AND leased_by > 0 AND leased_by IS NOT NULL
        AND leased_by < 9223372036854775807 AND reason = '' AND started_at IS NOT NULL AND state = 'running')
    OR (finished_at IS NOT NULL AND leased_by IS NULL AND reason = '' AND started_at IS NOT NULL
        AND state = 'succeeded')
    OR (finished_at IS NOT NULL AND leased_by IS NULL AND started_at IS NOT NULL AND state = 'failed'
        AND cancel_requested_at IS NULL AND error_class IS NOT NULL AND NOT (reason = ''))
    OR (finished_at IS NOT NULL AND leased_by IS NULL AND state = 'cancelled')
"""
_NEW_INSTANTS = f"LEAST({', '.join(_INSTANTS)}) >= {_EARLIEST} AND GREATEST({', '.join(_INSTANTS)}) <= {_LATEST}"
_OLD_INSTANTS = " AND ".join(f"({name} >= {_EARLIEST} AND {name} <= {_LATEST})" for name in _INSTANTS)


class Migration(JobTablesMigration):
    dependencies: ClassVar = [("salon_jobs", "0007_cheaper_jobs")]
    operations: ClassVar = [
        migrations.RunSQL(
            _REPLACE.format(state=_NEW_STATE, instants=_NEW_INSTANTS),
            reverse_sql=_REPLACE.format(state=_OLD_STATE, instants=_OLD_INSTANTS),
            state_operations=[
                migrations.RemoveConstraint(model_name="job", name="salon_jobs_job_state"),
                migrations.RemoveConstraint(model_name="job", name="salon_jobs_job_instants"),
                migrations.AddConstraint(
                    model_name="job",
                    constraint=CheckConstraint(
                        condition=(
                            Q(finished_at=None, reason="")
                            & (
                                Q(state="queued", leased_by=None, begun_once_at=None, cancel_requested_at=None)
                                | Q(
                                    state="running",
                                    leased_by__isnull=False,
                                    leased_by__gt=0,
                                    leased_by__lt=2**63 - 1,
                                    lease__gt=0,
                                    started_at__isnull=False,
                                )
                            )
                        )
                        | (
                            Q(finished_at__isnull=False, leased_by=None)
                            & (
                                Q(state="succeeded", started_at__isnull=False, reason="")
                                | (
                                    Q(
                                        state="failed",
                                        started_at__isnull=False,
                                        cancel_requested_at=None,
                                        error_class__isnull=False,
                                    )
                                    & ~Q(reason="")
                                )
                                | Q(state="cancelled")
                            )
                        ),
                        name="salon_jobs_job_state",
                    ),
                ),
                migrations.AddConstraint(
                    model_name="job",
                    constraint=CheckConstraint(
                        condition=Q(
                            GreaterThanOrEqual(Least(*_INSTANTS), datetime(1, 1, 2, tzinfo=UTC)),
                            LessThanOrEqual(Greatest(*_INSTANTS), datetime(9999, 12, 30, tzinfo=UTC)),
                        ),
                        name="salon_jobs_job_instants",
                    ),
                ),
            ],
        ),
        RemoveTrigger(model_name="job", name="legal_moves_only"),
        AddGuard(
            model_name="job",
            trigger=Trigger(
                name="legal_moves_only",
                sql=UpsertTriggerSql(
                    condition="WHEN (((OLD.state || '>') || NEW.state) = ANY ('{succeeded>queued,succeeded>running,succeeded>failed,succeeded>cancelled,queued>succeeded,queued>failed,failed>running,failed>succeeded,cancelled>running,cancelled>succeeded,cancelled>failed}'))",
                    func="RAISE EXCEPTION 'pgtrigger: Cannot update of \"state\" rows from % table', TG_TABLE_NAME;",
                    hash="bc4c39963c365c7d902e022f15c797487f3e182c",
                    operation='UPDATE OF "state"',
                    pgid="pgtrigger_legal_moves_only_38cdb",
                    table="salon_jobs_job",
                    when="BEFORE",
                ),
            ),
        ),
    ]
