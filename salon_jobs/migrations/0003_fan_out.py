"""Install the fan-out function over the configured store model; nothing without one."""

from typing import ClassVar

from salon_jobs.access.operations import InstallFanOutFunction
from salon_jobs.access.operations.base import JobTablesMigration
from salon_jobs.conf import settings as conf


class Migration(JobTablesMigration):
    """After the store's table exists."""

    dependencies: ClassVar = [
        ("salon_jobs", "0002_protect"),
        *([] if conf.store_model is None else [(conf.store_model.split(".")[0], "__first__")]),
    ]
    operations: ClassVar = [InstallFanOutFunction()]
