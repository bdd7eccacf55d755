"""Operators' actions: change jobs and messages, pause and limit. Role: operator, unless stated otherwise."""

from salon_jobs.core.records import ActionResult as ActionResult
from salon_jobs.jobs.control import cancel_jobs as cancel_jobs
from salon_jobs.jobs.control import change_jobs as change_jobs
from salon_jobs.jobs.control import discard_jobs as discard_jobs
from salon_jobs.jobs.control import retry_jobs as retry_jobs
from salon_jobs.jobs.control import run_again as run_again
from salon_jobs.jobs.limits import limit as limit
from salon_jobs.jobs.limits import pause as pause
from salon_jobs.jobs.limits import resume as resume
from salon_jobs.outbox.control import MessageCriteria as MessageCriteria
from salon_jobs.outbox.control import Replayed as Replayed
from salon_jobs.outbox.control import pause_destination as pause_destination
from salon_jobs.outbox.control import replay_messages as replay_messages
from salon_jobs.outbox.control import resume_destination as resume_destination
from salon_jobs.outbox.control import retry_messages as retry_messages
from salon_jobs.outbox.control import skip_messages as skip_messages
from salon_jobs.outbox.control import unpark as unpark
from salon_jobs.schedules.scheduler import override_cron_entries as override_cron_entries
from salon_jobs.schedules.scheduler import pause_cron_entries as pause_cron_entries
from salon_jobs.schedules.scheduler import resume_cron_entries as resume_cron_entries
from salon_jobs.schedules.scheduler import run_cron_entry as run_cron_entry
from salon_jobs.schedules.stored import delete_schedules as delete_schedules
from salon_jobs.schedules.stored import pause_schedules as pause_schedules
from salon_jobs.schedules.stored import resume_schedules as resume_schedules
from salon_jobs.schedules.stored import run_schedule as run_schedule
