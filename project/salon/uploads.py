"""Uploads of files: the row and the message that has it parsed are written in one transaction."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from django.conf import settings

from project.salon.models.uploaded_file import UploadedFile
from salon_jobs import emit

UPLOADED: Final = "file.uploaded"


def upload(store_id: UUID, *, name: str, content: str) -> UploadedFile:
    """Store a file and emit ``file.uploaded``, both or neither. Call this in the store's context.

    The payload has all that a parser that does not know the envelope needs: which file, and whose.
    """
    kept = UploadedFile.objects.create(store_id=store_id, name=name, content=content)
    emit(
        settings.UPLOADS_DESTINATION,
        aggregate_id=str(kept.pk),
        event=UPLOADED,
        payload={"task_id": kept.pk, "store_id": store_id},
    )
    return kept
