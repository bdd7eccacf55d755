"""Shows one job: ``salon_jobs show``."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.redaction import redacted
from salon_jobs.jobs.retries import retries_ahead
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.table import printable_lines
from salon_jobs.models import Job, JobError
from salon_jobs.schedule.find import tick_of


class Show(Subcommand):
    """Shows everything known of one job."""

    name = "show"
    help = "Show a job with its payload, the error of every attempt, what enqueued it and the retries ahead."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", type=int, help="the id of a job")
        parser.add_argument("--json", action="store_true", help="write an object")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write it. Raises CommandError when there is no such job."""
        job = Job.objects.using(conf.reader_database).filter(pk=options["id"]).first()
        if job is None:
            raise CommandError(f"there is no job {options['id']}; jobs that succeed are deleted unless KEEP_SUCCEEDED")
        shown = _described(job)
        if options["json"]:
            out.write(json.dumps(shown, indent=2, default=str))
            return
        errors = shown.pop("errors")
        for name, value in shown.items():
            is_json = isinstance(value, dict | list)
            text = json.dumps(value, indent=2, default=str, ensure_ascii=False) if is_json else str(value)
            out.write(printable_lines(f"{name}: {text}"))
        for error in errors:
            code = f" ({error['code']})" if error["code"] else ""
            head = f"\nattempt {error['attempt']} at {error['occurred_at']}: {error['error_class']}{code}"
            out.write(printable_lines(f"{head}\n{error['traceback'] or error['message']}"))


def _described(job: Job) -> dict[str, Any]:
    rows = JobError.objects.using(conf.reader_database).filter(job_id=job.pk).order_by("pk")
    errors = rows.values("attempt", "error_class", "code", "message", "traceback", "occurred_at")
    tick: Any = tick_of(job, using=conf.reader_database)
    columns = {field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields}
    return {
        **columns,
        "payload": redacted(job.payload, conf.redact),
        "cron_entry": tick.entry if tick else None,
        "retries_ahead": [asdict(retry) for retry in retries_ahead(job, datetime.now(UTC))],
        "errors": list(errors),
    }
