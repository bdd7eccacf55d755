"""Each process takes from the environment its role's URL, its log, its tracing and its brokers."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any
from unittest.mock import patch

import pytest
from django.core.exceptions import ImproperlyConfigured

from project import settings
from project.tracing import trace_to
from tests.interpreter import ROOT, run_python

URLS = {
    "DATABASE_URL_MIGRATOR": "postgresql://migrator:p@127.0.0.1:1/salon",
    "WORKER_DATABASE_URL": "postgresql://worker_runtime:p@127.0.0.1:1/salon",
    "DATABASE_URL": "postgresql://app:p@127.0.0.1:1/salon?pool=true",
}


def settings_of(command: str, environment: dict[str, str]) -> dict[str, Any]:
    """Execute the settings as ``manage.py COMMAND`` would."""
    inherited = settings.INHERITED_ENVIRONMENT
    with patch.dict(os.environ, inherited | environment, clear=True), patch.object(sys, "argv", ["manage.py", command]):
        return runpy.run_path(str(ROOT / "project" / "settings.py"))


@pytest.mark.parametrize(
    ("command", "variable", "user"),
    [
        ("migrate", "DATABASE_URL_MIGRATOR", "migrator"),
        ("sqlmigrate", "DATABASE_URL_MIGRATOR", "migrator"),
        ("runworker", "WORKER_DATABASE_URL", "worker_runtime"),
        ("runscheduler", "WORKER_DATABASE_URL", "worker_runtime"),
        ("runserver", "DATABASE_URL", "app"),
    ],
)
def test_command_connects_as_its_role(command: str, variable: str, user: str) -> None:
    assert settings_of(command, URLS)["DATABASES"]["default"]["USER"] == user
    with pytest.raises(ImproperlyConfigured, match=f"{command} needs {variable}"):
        settings_of(command, {name: url for name, url in URLS.items() if name != variable})


def test_help_and_bootstrap_need_no_url() -> None:
    assert not settings_of("bootstrap_roles", {})["DATABASES"]["default"]["NAME"]
    assert not [name for name in settings.INHERITED_ENVIRONMENT if "PASSWORD" in name or name.endswith("_URL")]
    done = run_python("manage.py", "runworker", "--help", environment=settings.INHERITED_ENVIRONMENT)
    assert "--with-scheduler" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        *(
            ("WORKER_DATABASE_URL", url, "WORKER_DATABASE_URL is malformed; write postgresql://")
            for url in (
                "",
                "secret",
                "postgresql://u:secret@h:port/x",
                "postgresql://u:secret@[::1/x",
                "foo://u:secret@h/x",
            )
        ),
        ("SENTRY_LEVEL", "loud", "SENTRY_LEVEL is 'loud'; write debug"),
        ("SENTRY_SAMPLE_RATE", "all", "SENTRY_SAMPLE_RATE is 'all'; write a number from 0 to 1"),
        ("SENTRY_SAMPLE_RATE", "2", "SENTRY_SAMPLE_RATE is '2'; write a number from 0 to 1"),
        ("TRACING", "maybe", "TRACING is 'maybe'; write true or false"),
        ("TRACING_AGENT", "", "TRACING_AGENT is not set: write otel-collector:4317"),
        ("TRACING_AGENT", "otel-collector", "'otel-collector' has neither a scheme nor a port"),
        ("TRACING_AGENT", "otel:4318", "has the port of OTLP over HTTP but neither http:// nor https://"),
        ("TRACING_AGENT", "[::1:4317", "is malformed"),
        ("TRACING_AGENT", "grpc://otel:4317", "has the scheme 'grpc'"),
        ("TRACING_AGENT", "http://:4318", "names no host"),
        ("TRACING_AGENT", "http://otel:4318?x=1", "has a query"),
        ("TRACING_AGENT", "http://otel:4317/v1/traces", "has a path, which gRPC does not know"),
        ("TRACING_AGENT", "http://user:secret@otel:4318", "must not hold a user or a password"),
    ],
)
def test_wrong_value_is_named_without_secret(variable: str, value: str, complaint: str) -> None:
    dsn = {"SENTRY_DSN": "http://key@127.0.0.1:9/1"} if "SENTRY" in variable else {}
    with pytest.raises(ImproperlyConfigured) as refused:
        settings_of("runworker", {**URLS, **dsn, "TRACING": str("AGENT" in variable), variable: value})
    assert complaint in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("agent", "exporter", "made"),
    [
        ("http://otel:4318/otlp/", "http", {"endpoint": "http://otel:4318/otlp/v1/traces"}),
        ("http://otel:4318/v1/traces", "http", {"endpoint": "http://otel:4318/v1/traces"}),
        ("otel:9999", "grpc", {"endpoint": "otel:9999", "insecure": True}),
        ("https://otel:4317", "grpc", {"endpoint": "otel:4317", "insecure": False}),
    ],
)
def test_agent_address_chooses_protocol(agent: str, exporter: str, made: dict[str, object]) -> None:
    name = f"opentelemetry.exporter.otlp.proto.{exporter}.trace_exporter"
    with patch("opentelemetry.trace.set_tracer_provider"), patch(f"{name}.OTLPSpanExporter") as otlp:
        trace_to(agent, service_name="tills", environment="test")
        otlp.assert_called_once_with(**made)
    missing = f"opentelemetry-exporter-otlp-proto-{exporter}"
    with patch.dict(sys.modules, {name: None}), pytest.raises(ImproperlyConfigured, match=missing):
        trace_to(agent, service_name="tills", environment="test")


def test_consumers_come_from_environment() -> None:
    consumers = '{"pings": {"SOURCE": "rn::azurequeue:::pings", "TASKS": {"ping": "ping"}}}'
    found = settings_of("consume_queue", {**URLS, "SNS_ALLOW_LIST": "a,b", "CONSUMERS": consumers})["SALON_JOBS"]
    assert found["CONSUMERS"]["pings"]["TASKS"] == {"ping": "ping"}
    assert found["SNS"]["ALLOW_LIST"] == ["a", "b"]
