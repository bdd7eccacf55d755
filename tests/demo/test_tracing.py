"""Shows that spans of the project reach an agent at each form of its address, or that the address is refused."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from project import settings
from tests.demo.test_settings import URLS, settings_of
from tests.interpreter import run_python

# Neither has types.
grpc: Any = import_module("grpc")
protocol: Any = import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
METHOD = "opentelemetry.proto.collector.trace.v1.TraceService"
SPAN = """
import sys
sys.argv = ["manage.py", "runworker"]
from project import settings
from opentelemetry import trace
with trace.get_tracer("tests").start_as_current_span("opened"):
    pass
trace.get_tracer_provider().force_flush(5000)
"""


class Agent:
    """OTLP receiver; keeps (path, service, environment, names of spans) of every request."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, str, list[str]]] = []
        self.port = 0

    def take(self, path: str, request: Any) -> None:
        for spans in request.resource_spans:
            about = {each.key: each.value.string_value for each in spans.resource.attributes}
            names = [span.name for scope in spans.scope_spans for span in scope.spans]
            self.received.append((path, about["service.name"], about["deployment.environment.name"], names))


@contextmanager
def over_http() -> Generator[Agent]:
    agent = Agent()

    class Receive(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            agent.take(self.path, protocol.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            """Write nothing to the output of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receive)
    agent.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield agent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def over_grpc() -> Generator[Agent]:
    agent = Agent()

    def export(request: Any, _: object) -> Any:
        agent.take("grpc", request)
        return protocol.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=protocol.ExportTraceServiceRequest.FromString,
        response_serializer=protocol.ExportTraceServiceResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(METHOD, {"Export": handler})])
    agent.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield agent
    finally:
        server.stop(None).wait()


def traced(agent: str, code: str = SPAN, **environment: str) -> subprocess.CompletedProcess[str]:
    """Make a span in a process of the project."""
    tracing = {"TRACING": "on", "TRACING_AGENT": agent, **environment}
    return run_python("-c", code, environment={**settings.INHERITED_ENVIRONMENT, **URLS, **tracing})


@pytest.mark.parametrize(
    ("receiver", "address", "path"),
    [
        (over_http, "http://127.0.0.1:{port}", "/v1/traces"),
        (over_http, "http://localhost:{port}/", "/v1/traces"),
        (over_http, "http://127.0.0.1:{port}/v1/traces", "/v1/traces"),
        (over_http, "http://127.0.0.1:{port}/otlp", "/otlp/v1/traces"),
        (over_grpc, "127.0.0.1:{port}", "grpc"),
        (over_grpc, "localhost:{port}", "grpc"),
    ],
)
def test_spans_reach_the_agent(receiver: Callable[[], AbstractContextManager[Agent]], address: str, path: str) -> None:
    with receiver() as agent:
        done = traced(address.format(port=agent.port), TRACING_SERVICE_NAME="tills", TRACING_ENVIRONMENT="test")
        assert (done.returncode, done.stderr) == (0, "")
        assert agent.received == [(path, "tills", "test", ["opened"])]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_port_4317_is_grpc_whatever_the_scheme(scheme: str) -> None:
    show = (
        "import opentelemetry.exporter.otlp.proto.grpc.trace_exporter as grpc; made = [];"
        "grpc.OTLPSpanExporter = lambda **given: made.append(given)\n"
        "import sys; sys.argv = ['manage.py', 'runworker']\n"
        "from project import settings; print(made)"
    )
    done = traced(f"{scheme}://otel-collector:4317", show)
    assert done.stdout.strip() == f"[{{'endpoint': 'otel-collector:4317', 'insecure': {scheme == 'http'}}}]", (
        done.stderr
    )


def refusal(**tracing: str) -> str:
    """Return why settings with this tracing are refused."""
    with pytest.raises(ImproperlyConfigured) as refused:
        settings_of("runworker", URLS | {"TRACING": "on"} | tracing)
    return str(refused.value)


@pytest.mark.parametrize("tracing", [{}, {"TRACING_AGENT": ""}])
def test_the_agent_is_required(tracing: dict[str, str]) -> None:
    assert refusal(**tracing) == (
        "TRACING is on and TRACING_AGENT is not set: write otel-collector:4317 for OTLP over gRPC, or"
        " http://otel-collector:4318 for OTLP over HTTP"
    )


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        ("otel-collector", "'otel-collector' has neither a scheme nor a port"),
        ("otel-collector:4318", "has the port of OTLP over HTTP but neither http:// nor https://"),
        ("otel-collector:port", "is malformed"),
        ("[::1:4317", "is malformed"),
        ("grpc://otel-collector:4317", "has the scheme 'grpc'"),
        ("http://:4318", "names no host"),
        ("otel collector:4317", "names no host"),
        ("http://otel-collector:4318?x=1", "has a query"),
        ("http://otel-collector:4317/v1/traces", "has a path, which gRPC does not know"),
        ("http://user:secret@otel-collector:4318", "must not hold a user or a password"),
    ],
)
def test_an_address_that_can_not_work_is_refused_with_the_reason(agent: str, reason: str) -> None:
    message = refusal(TRACING_AGENT=agent)
    assert "TRACING_AGENT" in message
    assert reason in message
    assert "http://otel-collector:4318 for OTLP over HTTP" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("agent", "module", "remedy"),
    [
        (
            "otel-collector:4317",
            "grpc",
            "-grpc, or give the address of OTLP over HTTP, usually http://otel-collector:4318",
        ),
        ("http://otel-collector:4318", "http", "-http"),
    ],
)
def test_a_missing_exporter_is_named(agent: str, module: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", ".trace_exporter"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{module}{name}", None)
    message = refusal(TRACING_AGENT=agent)
    assert message.endswith(f"'salon-jobs[opentelemetry]' opentelemetry-exporter-otlp-proto{remedy}")
