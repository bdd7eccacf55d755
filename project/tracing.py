"""Sets up the OpenTelemetry SDK of a process: spans in batches, over OTLP, to an agent."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.core.exceptions import ImproperlyConfigured


def trace_to(agent: str, *, service_name: str, environment: str) -> None:
    """Send the spans of this process to ``agent``, such as ``http://host:4318``. Raises ImproperlyConfigured."""
    try:
        # By name: they are wanted only where tracing is.
        trace: Any = import_module("opentelemetry.trace")
        resources: Any = import_module("opentelemetry.sdk.resources")
        sdk: Any = import_module("opentelemetry.sdk.trace")
        export: Any = import_module("opentelemetry.sdk.trace.export")
        otlp: Any = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise ImproperlyConfigured(
            f"TRACING is on, and {error.name} is missing: "
            "pip install 'salon-jobs[opentelemetry]' opentelemetry-exporter-otlp-proto-http"
        ) from error
    resource = resources.Resource.create({"service.name": service_name, "deployment.environment.name": environment})
    provider = sdk.TracerProvider(resource=resource)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter(f"{agent.rstrip('/')}/v1/traces")))
    trace.set_tracer_provider(provider)
