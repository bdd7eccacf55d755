"""OpenTelemetry SDK of a process: spans in batches, over OTLP, to an agent."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import SplitResult, urlsplit

from django.core.exceptions import ImproperlyConfigured

_GRPC_PORT = 4317
_HTTP_PORT = 4318
_HTTP_PATH = "/v1/traces"
_EXPORTER = "opentelemetry-exporter-otlp-proto-"


def trace_to(agent: str, *, service_name: str, environment: str) -> None:
    """Send this process's spans to ``agent``. Raises ImproperlyConfigured, naming the setting.

    ``agent`` is ``host:port`` or ``http(s)://host:4317`` for OTLP over gRPC, or ``http(s)://host:port`` for OTLP over
    HTTP.
    """
    address = _parse(agent)
    over_grpc = _is_grpc(address)
    protocol = "grpc" if over_grpc else "http"
    # Imported by name, because they are needed only if tracing is on.
    try:
        trace: Any = import_module("opentelemetry.trace")
        resources: Any = import_module("opentelemetry.sdk.resources")
        sdk: Any = import_module("opentelemetry.sdk.trace")
        export: Any = import_module("opentelemetry.sdk.trace.export")
        otlp: Any = import_module(f"opentelemetry.exporter.otlp.proto.{protocol}.trace_exporter")
    except ImportError as error:
        otherwise = f", or give the address of OTLP over HTTP, usually http://{address.hostname}:{_HTTP_PORT}"
        raise ImproperlyConfigured(
            f"TRACING is on, TRACING_AGENT asks for OTLP over {protocol}, and {error.name} is missing: "
            f"pip install 'salon-jobs[opentelemetry]' {_EXPORTER}{protocol}{otherwise if over_grpc else ''}"
        ) from error
    exporter: Any
    if over_grpc:
        exporter = otlp.OTLPSpanExporter(endpoint=address.netloc, insecure=address.scheme != "https")
    else:
        exporter = otlp.OTLPSpanExporter(endpoint=address._replace(path=_http_path(address.path)).geturl())
    resource = resources.Resource.create({"service.name": service_name, "deployment.environment.name": environment})
    provider = sdk.TracerProvider(resource=resource)
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def _parse(agent: str) -> SplitResult:
    examples = "write otel-collector:4317 for OTLP over gRPC, or http://otel-collector:4318 for OTLP over HTTP"
    if not agent:
        raise ImproperlyConfigured(f"TRACING is on and TRACING_AGENT is not set: {examples}")
    try:
        address = urlsplit(agent if "://" in agent else f"//{agent}")
        port = address.port
    except ValueError as error:
        raise ImproperlyConfigured(f"TRACING_AGENT is malformed: {error}; {examples}") from None
    if "@" in address.netloc:  # not shown, because it may be a password
        raise ImproperlyConfigured(f"TRACING_AGENT must not hold a user or a password; {examples}")
    complaint = ""
    if address.scheme not in ("", "http", "https"):
        complaint = f"has the scheme {address.scheme!r}"
    elif not address.hostname or any(character.isspace() for character in agent):
        complaint = "names no host"
    elif address.query or address.fragment:
        complaint = "has a query or a fragment"
    elif not address.scheme and port is None:
        complaint = "has neither a scheme nor a port"
    elif not address.scheme and port == _HTTP_PORT:
        complaint = "has the port of OTLP over HTTP but neither http:// nor https://"
    elif _is_grpc(address) and address.path.strip("/"):
        complaint = f"has a path, which gRPC does not know (port {port} is gRPC's)"
    if complaint:
        raise ImproperlyConfigured(f"TRACING_AGENT {agent!r} {complaint}; {examples}")
    return address


def _is_grpc(address: SplitResult) -> bool:
    return not address.scheme or address.port == _GRPC_PORT


def _http_path(path: str) -> str:
    path = path.rstrip("/")
    return path if path.endswith(_HTTP_PATH) else path + _HTTP_PATH
