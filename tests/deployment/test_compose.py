"""docker/compose.yaml: who gets which secret, in which order services start, and that health is checked."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.deployment.compose import COMPOSE, ROOT, RUNTIMES, SERVICES

BROKERS = {"NATS_SERVER": "nats", "AZURE_STORAGE_CONNECTION_STRING": "azurite"}
#: service -> the URLs it gets: variable and the role inside it, or the host of a broker
URLS = {
    "postgres": {},
    "nats": {},
    "azurite": {},
    "queues": BROKERS,
    "bootstrap": {"DATABASE_URL_BOOTSTRAP": "postgres"},
    "migrate": {"DATABASE_URL_MIGRATOR": "migrator"},
    "web": {"DATABASE_URL": "app", "OPERATOR_DATABASE_URL": "jobs_operator"},
    "worker": {"WORKER_DATABASE_URL": "worker_runtime"},
    "scheduler": {"WORKER_DATABASE_URL": "worker_runtime"},
    "relay": {"WORKER_DATABASE_URL": "worker_runtime", **BROKERS},
    "consumer": {"WORKER_DATABASE_URL": "worker_runtime", **BROKERS},
}
#: what each process reports about itself, and where to
OBSERVED = {"LOG_LEVEL", "LOG_FORMAT", "SENTRY_DSN", "SENTRY_LEVEL", "SENTRY_SAMPLE_RATE", "TRACING", "TRACING_AGENT"}
#: service -> the variables of .env that may appear anywhere in its definition
VARIABLES = {
    "postgres": {"POSTGRES_PASSWORD"},
    "bootstrap": {
        "POSTGRES_PASSWORD",
        "MIGRATOR_PASSWORD",
        "APP_PASSWORD",
        "WORKER_RUNTIME_PASSWORD",
        "JOBS_OPERATOR_PASSWORD",
    },
    "migrate": {"MIGRATOR_PASSWORD"},
    "web": {"APP_PASSWORD", "JOBS_OPERATOR_PASSWORD", "SECRET_KEY", "ALLOWED_HOSTS", "CSRF_TRUSTED_ORIGINS", *OBSERVED},
    "worker": {
        "WORKER_RUNTIME_PASSWORD",
        "EMAIL_HOST",
        "EMAIL_PORT",
        "WORKER_CONCURRENCY",
        "WORKER_PROCESSES",
        "SENTRY_MONITORS",
        *OBSERVED,
    },
    "scheduler": {"WORKER_RUNTIME_PASSWORD", *OBSERVED},
    "relay": {"WORKER_RUNTIME_PASSWORD", "AZURITE_KEY", *OBSERVED},
    "consumer": {"WORKER_RUNTIME_PASSWORD", "AZURITE_KEY", *OBSERVED},
    "nats": set(),
    "azurite": {"AZURITE_KEY"},
    "queues": {"AZURITE_KEY"},
}
#: what else could hand a service something: files, mounts, or another definition
DOORS = {"env_file", "secrets", "configs", "extends", "volumes", "volumes_from", "credential_spec", "label_file"}


def test_the_services_are_exactly_these() -> None:
    assert set(SERVICES) == set(URLS)


@pytest.mark.parametrize("service", URLS)
def test_service_gets_only_its_own_urls(service: str) -> None:
    environment: dict[str, str] = SERVICES[service]["environment"]
    urls = {name: value for name, value in environment.items() if "://" in value}
    assert {name: re.findall(r"://(\w+)", value) for name, value in urls.items()} == {
        name: [inside] for name, inside in URLS[service].items()
    }
    assert {name for name in environment if "DATABASE_URL" in name} <= set(URLS[service])


def test_the_migrators_url_reaches_migrate_alone() -> None:
    text = {name: yaml.safe_dump(service, width=10_000) for name, service in SERVICES.items()}
    assert [name for name in text if "DATABASE_URL_MIGRATOR" in text[name]] == ["migrate"]
    assert [name for name in text if "DATABASE_URL_BOOTSTRAP" in text[name]] == ["bootstrap"]


@pytest.mark.parametrize("service", VARIABLES)
def test_service_sees_only_its_own_variables(service: str) -> None:
    """No secret has a default."""
    text = yaml.safe_dump(SERVICES[service], width=10_000)
    assert set(re.findall(r"\$\{?(\w+)", text)) == VARIABLES[service]
    secrets = {name for name in VARIABLES[service] if name.endswith(("_PASSWORD", "_KEY"))}
    assert set(re.findall(r"\$\{(\w*(?:PASSWORD|_KEY):.)", text)) == {f"{name}:?" for name in secrets}


def test_nothing_is_handed_over_but_by_the_environment() -> None:
    assert set(COMPOSE) == {"name", "x-app", "x-health", "x-restarted", "x-observed", "services", "volumes"}
    doors = {name: DOORS & set(service) for name, service in SERVICES.items()}
    stores = {"postgres", "nats", "azurite"}
    assert doors == {name: {"volumes"} if name in stores else set() for name in SERVICES}
    assert {name: SERVICES[name]["volumes"][0].partition(":")[0] for name in stores} == {name: name for name in stores}


def test_services_start_in_order() -> None:
    assert SERVICES["bootstrap"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["migrate"]["depends_on"] == {"bootstrap": {"condition": "service_completed_successfully"}}
    ended = {"condition": "service_completed_successfully"}
    for service in ("web", "worker", "scheduler"):
        assert SERVICES[service]["depends_on"] == {"migrate": ended}
    for service in ("relay", "consumer"):
        assert SERVICES[service]["depends_on"] == {"migrate": ended, "queues": ended}


def test_runtimes_start_again_with_the_machine() -> None:
    goes_on = {name for name, each in SERVICES.items() if each.get("restart") == "unless-stopped"}
    assert goes_on == set(SERVICES) - {"queues", "bootstrap", "migrate"}


@pytest.mark.parametrize("service", ["postgres", "nats", "azurite", "web", *RUNTIMES])
def test_runtimes_are_read_only_and_asked_for_health(service: str) -> None:
    definition = SERVICES[service]
    kind, *test = definition["healthcheck"]["test"]
    assert kind == "CMD"
    if service in ("web", *RUNTIMES):
        assert (definition["read_only"], definition["cap_drop"], definition["init"]) == (True, ["ALL"], True)
    if service in RUNTIMES:
        command, port = definition["command"], RUNTIMES[service]
        assert command[command.index("--health-addr") + 1] == f"0.0.0.0:{port}"
        assert test[-1] == f"http://127.0.0.1:{port}/readyz"
        assert "ports" not in definition, "health is for the container's own network"
        assert int(definition["stop_grace_period"].removesuffix("s")) > 30, "longer than the workers' own grace"


def test_image_is_unprivileged_and_locked() -> None:
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    assert "USER 10001" in lines, "a number, which Kubernetes can compare with 0"
    assert any("--require-hashes" in line for line in lines)
    assert 'CMD ["help"]' in lines, "whoever names no command has no database either"
    copies = [line.split() for line in lines if line.startswith("COPY ") and "--from" not in line]
    copied = [name for _, *names, _ in copies for name in names]
    assert all((ROOT / name).exists() for name in copied)
    let_in = (ROOT / "docker" / "Dockerfile.dockerignore").read_text()
    assert {f"!{name}" for name in copied} <= set(let_in.splitlines())
    locked = (ROOT / "requirements-runtime.lock").read_text()
    for package in (
        "gunicorn",
        "whitenoise",
        "nats-py",
        "boto3",
        "azure-storage-queue",
        "prometheus-client",
        "opentelemetry-exporter-otlp-proto-grpc",
        "opentelemetry-exporter-otlp-proto-http",
    ):
        assert re.search(rf"^{package}==", locked, re.MULTILINE), package
