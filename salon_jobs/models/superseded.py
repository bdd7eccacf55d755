"""Declares the mark of a run that a newer job has superseded."""

from __future__ import annotations

from django.db import models


class SupersededRun(models.Model):
    """One running job whose key a newer job took: it is not retried, also when the newer one has long finished.

    A row of its own, since an enqueue never touches a running job. Written by the trigger on the job table, read when
    a run ends without success, forgotten by the workers' maintenance.
    """

    job_id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    lease: models.IntegerField[int, int] = models.IntegerField(
        help_text="The run that was superseded; a later one of the same job is not"
    )

    class Meta:
        db_table = "salon_jobs_superseded"

    def __str__(self) -> str:
        return f"run {self.lease} of job {self.job_id}"
