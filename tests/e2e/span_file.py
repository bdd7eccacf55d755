"""Spans of several processes in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class _FileExporter(SpanExporter):
    """Exporter that appends one line for each span, in a single write."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append the spans, with the process that made them."""
        for span in spans:
            line = json.dumps({**json.loads(span.to_json()), "pid": os.getpid()})
            with self._file.open("a") as file:
                file.write(f"{line}\n")
        return SpanExportResult.SUCCESS


def trace_into(file: Path) -> None:
    """Have this process write its spans into ``file``: in batches, as exporters to agents do."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_FileExporter(file), schedule_delay_millis=3_600_000))
    trace.set_tracer_provider(provider)


def read_spans(file: Path) -> list[dict[str, Any]]:
    """Return the spans written so far."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]
