"""Names the log events and formats them as JSON lines. Never the payload."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

logger: Final = logging.getLogger("salon_jobs")

JOB_SUCCEEDED: Final = "job_succeeded"
JOB_RETRIED: Final = "job_retried"
JOB_FAILED: Final = "job_failed"
JOB_SNOOZED: Final = "job_snoozed"
JOB_CANCELLED: Final = "job_cancelled"
JOB_RELEASED: Final = "job_released"
JOB_LEASE_LOST: Final = "job_lease_lost"
JOB_RESCUED: Final = "job_rescued"
JOB_NOT_RESCUED: Final = "job_not_rescued"
JOB_CALLBACK_FAILED: Final = "job_callback_failed"
TASKS_UNKNOWN: Final = "tasks_unknown"
PROCESS_STARTED: Final = "process_started"
PROCESS_STOPPING: Final = "process_stopping"
PROCESS_STOPPED: Final = "process_stopped"
PROCESS_BURIED: Final = "process_buried"
PROCESS_WAS_BURIED: Final = "process_was_buried"
HEALTH_LISTENING: Final = "health_listening"
WAITING: Final = "waiting"
DATABASE_LOST: Final = "database_lost"
DATABASE_BACK: Final = "database_back"
LISTENER_LOST: Final = "listener_lost"
CRON_FIRED: Final = "cron_fired"
CRON_MISSED: Final = "cron_missed"
CRON_FAILED: Final = "cron_failed"
ROLE_WARNING: Final = "role_warning"
QUEUE_LAG: Final = "queue_lag"


def log_event(level: int, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
    """Log ``event`` with its fields; a plain formatter shows them too. Never raises, whatever ``exc_info`` does."""
    if not logger.isEnabledFor(level):
        return
    try:
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        logger.log(level, "%s %s", event, text, exc_info=exc_info, extra={"event": event, "event_fields": fields})
    except BaseException as fault:  # a job's exception may do anything when it is shown, even ask for an exit
        logger.error("%s could not be logged in full: %s", event, type(fault).__name__)  # noqa: TRY400 - it would raise again


class JsonFormatter(logging.Formatter):
    """Format any record as one JSON line: time (UTC), level, logger, event or message, fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        event = getattr(record, "event", None)
        if event is None:
            line["message"] = record.getMessage()
        else:
            line["event"] = event
            line.update(getattr(record, "event_fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # A lone surrogate (from undecodable bytes) would break the stream that writes the line.
        text = json.dumps(line, default=str, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace").decode()
