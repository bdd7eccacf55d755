"""Reads docker/compose.yaml and proves who gets which secret, in which order, and that health is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

#: service -> the URLs it gets: variable and the role inside it
URLS = {
    "postgres": {},
    "bootstrap": {"DATABASE_URL_BOOTSTRAP": "postgres"},
    "migrate": {"DATABASE_URL_MIGRATOR": "migrator"},
    "web": {"DATABASE_URL": "app", "OPERATOR_DATABASE_URL": "jobs_operator"},
    "worker": {"WORKER_DATABASE_URL": "worker_runtime"},
    "scheduler": {"WORKER_DATABASE_URL": "worker_runtime"},
}
#: service -> the passwords that may appear anywhere in its definition
PASSWORDS = {
    "postgres": {"POSTGRES_PASSWORD"},
    "bootstrap": {
        "POSTGRES_PASSWORD", "MIGRATOR_PASSWORD", "APP_PASSWORD", "WORKER_RUNTIME_PASSWORD", "JOBS_OPERATOR_PASSWORD",
    },
    "migrate": {"MIGRATOR_PASSWORD"},
    "web": {"APP_PASSWORD", "JOBS_OPERATOR_PASSWORD"},
    "worker": {"WORKER_RUNTIME_PASSWORD"},
    "scheduler": {"WORKER_RUNTIME_PASSWORD"},
}  # fmt: skip


def test_the_services_are_exactly_these() -> None:
    assert set(SERVICES) == set(URLS)


@pytest.mark.parametrize("service", URLS)
def test_a_service_gets_only_the_urls_it_needs(service: str) -> None:
    environment: dict[str, str] = SERVICES[service]["environment"]
    urls = {name: value for name, value in environment.items() if "://" in value}
    assert {name: re.split(r"//|:", value)[2] for name, value in urls.items()} == URLS[service]
    assert {name for name in environment if "DATABASE_URL" in name} == set(URLS[service])
    assert "env_file" not in SERVICES[service], "an env_file would hand every secret to the service"


@pytest.mark.parametrize("service", PASSWORDS)
def test_a_service_sees_only_its_own_passwords_and_none_has_a_default(service: str) -> None:
    text = yaml.safe_dump(SERVICES[service], width=10_000)
    assert set(re.findall(r"\$\{(\w*PASSWORD)", text)) == PASSWORDS[service]
    assert set(re.findall(r"\$\{(\w*PASSWORD:.)", text)) == {f"{name}:?" for name in PASSWORDS[service]}


def test_only_the_web_process_gets_the_key_that_signs_sessions() -> None:
    assert [name for name, service in SERVICES.items() if "SECRET_KEY" in service["environment"]] == ["web"]


def test_bootstrap_comes_before_migrate_and_migrate_before_the_runtimes() -> None:
    assert SERVICES["bootstrap"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["migrate"]["depends_on"] == {"bootstrap": {"condition": "service_completed_successfully"}}
    for service in ("web", "worker", "scheduler"):
        assert SERVICES[service]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


@pytest.mark.parametrize(("service", "port"), [("worker", 8080), ("scheduler", 8081)])
def test_health_listens_inside_the_container_and_is_asked(service: str, port: int) -> None:
    command: list[str] = SERVICES[service]["command"]
    assert command[command.index("--health-addr") + 1] == f"0.0.0.0:{port}"
    assert SERVICES[service]["healthcheck"]["test"][-1] == f"http://127.0.0.1:{port}/readyz"
    assert "ports" not in SERVICES[service], "health is for the container's own network"


def test_the_runtimes_have_longer_to_stop_than_their_own_thirty_seconds() -> None:
    for service in ("worker", "scheduler"):
        assert int(SERVICES[service]["stop_grace_period"].removesuffix("s")) > 30


def test_the_image_runs_as_an_ordinary_user_from_the_locked_requirements() -> None:
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    assert "USER salon" in lines
    assert any("--require-hashes" in line for line in lines)
    copied = [line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert all((ROOT / name).exists() for name in copied)
