"""The image and the services of docker/compose.yaml, built and started once for all tests."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator

import pytest

from tests.deployment.compose import SERVICES
from tests.image.machine import CannotRun, Podman, podman_with_base
from tests.image.stack import Stack, build, build_other
from tests.interpreter import ROOT

_PASSWORDS = ("POSTGRES", "MIGRATOR", "APP", "WORKER_RUNTIME", "JOBS_OPERATOR")


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Run containers, or skip with the reason if this machine cannot run any."""
    try:
        podman = podman_with_base()
    except CannotRun as why:
        pytest.skip(f"NOT TESTED: the image and the services, because this machine cannot run containers. {why}")
    yield podman
    podman.close()


@pytest.fixture(scope="session")
def stack(podman: Podman) -> Stack:
    """Build every image and start every service; nothing here is the machine's fault, so nothing here skips."""
    build(podman, SERVICES["web"]["image"])
    for name in ("postgres", "nats", "azurite"):
        build_other(podman, name, SERVICES[name]["image"])
    variables = {f"{name}_PASSWORD": secrets.token_hex(24) for name in _PASSWORDS}
    variables["SECRET_KEY"] = secrets.token_hex(48)
    variables["AZURITE_KEY"] = base64.b64encode(secrets.token_bytes(64)).decode()
    stack = Stack(podman, ROOT / "docker" / "compose.yaml", variables)
    stack.up()
    return stack
