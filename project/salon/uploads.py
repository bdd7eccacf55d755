"""Uploads: the file, the task of parsing it and the message about it are written in one transaction."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from django.conf import settings

from project.salon.models import ParseTask, SourceFile
from salon_jobs import emit

UPLOADED: Final = "file.uploaded"


def upload(store_id: UUID, *, name: str, content: str) -> ParseTask:
    """Store a file and its pending task, and emit ``file.uploaded``, all or nothing. Call this in the store's context.

    Returns the task, whose row tells how far the parsing is.
    """
    file = SourceFile.objects.create(store_id=store_id, name=name, content=content)
    task = ParseTask.objects.create(store_id=store_id, source_file=file)
    emit(
        settings.UPLOADS_DESTINATION,
        aggregate_id=str(task.pk),
        event=UPLOADED,
        payload={"task_id": task.pk, "source_file_id": file.pk},
    )
    return task
