"""Record who paused what, and when."""

from __future__ import annotations  # Django's fields take no parameters at run time

from typing import Any, ClassVar

from django.db import migrations, models

from salon_jobs.access.operations import LocksBriefly

_FIELDS: tuple[tuple[str, models.Field[Any, Any]], ...] = (
    ("paused_at", models.DateTimeField(editable=False, help_text="When it was paused", null=True)),
    (
        "paused_by",
        models.CharField(db_default="", default="", editable=False, help_text="Who paused it", max_length=255),
    ),
)


class Migration(LocksBriefly):
    """Columns with a constant default: nothing is rewritten, and processes of the release before go on."""

    dependencies: ClassVar = [("salon_jobs", "0006_public_id_index")]
    operations: ClassVar = [
        migrations.AddField(model_name=model, name=name, field=field)
        for model in ("limit", "destinationstate")
        for name, field in _FIELDS
    ]
