"""Declaring, enqueueing and managing jobs: what a web process needs, without the worker."""

from typing import TYPE_CHECKING

from salon_jobs.core import lazy_names
from salon_jobs.core.records import AttemptError as AttemptError
from salon_jobs.core.records import EnqueueAction as EnqueueAction
from salon_jobs.core.records import FanOutProgress as FanOutProgress
from salon_jobs.core.records import FanOutResult as FanOutResult
from salon_jobs.core.records import JobRecord as JobRecord
from salon_jobs.core.records import JobState as JobState
from salon_jobs.core.records import Progress as Progress
from salon_jobs.jobs.fan_out import FanOut as FanOut
from salon_jobs.jobs.fan_out import fan_out_progress as fan_out_progress
from salon_jobs.jobs.results import JobHandle as JobHandle
from salon_jobs.jobs.task import ChunkTask as ChunkTask
from salon_jobs.jobs.task import Task as Task

if TYPE_CHECKING:
    from salon_jobs.jobs.flows import Flow as Flow
    from salon_jobs.jobs.flows import Member as Member
    from salon_jobs.jobs.flows import RunningFlow as RunningFlow
else:
    # Only projects with flows import these modules.
    __getattr__ = lazy_names(__name__, dict.fromkeys(("Flow", "Member", "RunningFlow"), "flows"))
