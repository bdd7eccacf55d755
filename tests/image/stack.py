"""The services of docker/compose.yaml as containers, each with exactly the flags that the file declares."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from project.local.azurite.install import HOME as AZURITE
from project.local.azurite.install import NODE, installed_program
from tests.image.machine import BASE, NETWORK, REGISTRIES, Podman
from tests.interpreter import ROOT

_OTHERS: Final = Path(__file__).parent / "others"
_BUILD: Final = ("build", "--isolation", "chroot", "--network", "host", "--layers=false")
_READY_S: Final = 180.0
_VARIABLE: Final = re.compile(r"\$\{(\w+):(?:\?|-([^}]*))[^}]*\}")
_HEALTH: Final = {
    "interval": "--health-interval",
    "timeout": "--health-timeout",
    "retries": "--health-retries",
    "start_period": "--health-start-period",
}


def build(podman: Podman, tag: str) -> None:
    """Build the project's image on the base."""
    podman(
        *(*_BUILD, *REGISTRIES, "--build-arg", f"PYTHON={BASE}"),
        *("--file", "docker/Dockerfile", "--ignorefile", "docker/Dockerfile.dockerignore", "--tag", tag, "."),
    )


def build_other(podman: Podman, target: str, tag: str, *, base: str = BASE) -> None:
    """Build an image of others/Dockerfile, which nobody publishes here."""
    installed_program()
    contexts = {
        "programs": Path(sys.prefix, "bin"),
        "wheels": Path(sysconfig.get_path("platlib")),
        "node": NODE.parent,
        "npm": AZURITE,
        "units": ROOT / "docker" / "systemd",
    }
    given = [text for name, path in contexts.items() for text in ("--build-context", f"{name}={path.resolve()}")]
    podman(*(*_BUILD, *given, "--build-arg", f"BASE={base}"), *("--target", target, "--tag", tag, str(_OTHERS)))


class Stack:
    """The services of one compose file. ``variables`` are those that .env would set."""

    def __init__(self, podman: Podman, path: Path, variables: Mapping[str, str]) -> None:
        self.podman = podman
        self._variables = variables
        self.services: dict[str, dict[str, Any]] = self._filled(yaml.safe_load(path.read_text())["services"])
        # Podman's own name server knows nobody for a moment whenever a container is restarted.
        self._addresses = dict(zip(self.services, podman.addresses(), strict=False))
        self.hosts = [f"--add-host={name}:{address}" for name, address in self._addresses.items()]

    def up(self) -> None:
        """Start every service once those it waits for are healthy or have succeeded."""
        for name, service in self.services.items():
            for other, wanted in service.get("depends_on", {}).items():
                if wanted == {"condition": "service_healthy"}:
                    self.wait_until_healthy(other)
                else:
                    assert wanted == {"condition": "service_completed_successfully"}
                    status = self.podman("wait", other).strip()
                    assert status == "0", f"{other} ended with status {status}:\n{self.logs(other)}"
            command = [str(word) for word in service.get("command", ())]
            self.podman("run", "--detach", "--name", name, *self._flags(name), service["image"], *command)

    def run(self, name: str, *arguments: str, environment: Mapping[str, str], stdin: str = "") -> str:
        """Run manage.py in one more container of a service, with more variables, and return its output."""
        more = [text for each in environment.items() for text in ("--env", "=".join(each))]
        more += ["--entrypoint", '["python", "manage.py"]', self.services[name]["image"]]
        return self.podman(
            "run", "--rm", "--interactive", *self._flags(name, once=True), *more, *arguments, stdin=stdin
        )

    def kill(self, name: str) -> None:
        """Kill the first process of a service, and so all of them, as the kernel would that has no memory left."""
        os.kill(int(self.podman.inspect(name, "State.Pid")), signal.SIGKILL)

    def wait_until_healthy(self, name: str, *, restarts: int = 0) -> None:
        """Wait until a service was restarted that often and its own health check succeeds."""
        deadline = time.monotonic() + _READY_S
        while int(self.podman.inspect(name, "RestartCount")) < restarts or not self.is_healthy(name):
            assert time.monotonic() < deadline, f"{name} is not healthy:\n{self.logs(name)[-5000:]}"
            time.sleep(0.2)

    def is_healthy(self, name: str) -> bool:
        return self.podman.succeeds("healthcheck", "run", name)

    def execute(self, name: str, *command: str) -> str:
        """Run a command in the container of a service and return its output."""
        return self.podman("exec", name, *command)

    def logs(self, name: str) -> str:
        return self.podman("logs", name)

    def _flags(self, name: str, *, once: bool = False) -> Iterator[str]:
        """Yield the flags of podman; KeyError for a key of the service that has none here."""
        service = self.services[name]
        yield from ("--network", NETWORK, "--pull", "never", *self.hosts)
        if not once:
            yield f"--ip={self._addresses[name]}"
        for key, value in service.items():
            match key:
                case "image" | "build" | "command" | "depends_on":
                    pass
                case "environment":
                    yield from (text for each in value.items() for text in ("--env", "=".join(map(str, each))))
                case "init" | "read_only":
                    yield f"--{key.replace('_', '-')}={str(value).lower()}"
                case "tmpfs" | "cap_drop":
                    yield from (f"--{key.replace('_', '-')}={each}" for each in value)
                case "security_opt":
                    yield from (f"--security-opt={each.removesuffix(':true')}" for each in value)
                case "entrypoint" | "restart" | "ports" | "volumes" | "healthcheck" | "stop_grace_period" if once:
                    pass
                case "entrypoint":
                    yield from ("--entrypoint", json.dumps(value))
                case "restart":
                    yield from ("--restart", value)
                case "ports":  # at any free port of this machine
                    yield from (f"--publish=127.0.0.1::{each.rpartition(':')[2]}" for each in value)
                case "volumes":
                    yield from (f"--volume={each}" for each in value)
                case "stop_grace_period":
                    yield from ("--stop-timeout", value.removesuffix("s"))
                case "healthcheck":
                    kind, *test = value["test"]
                    assert kind == "CMD", name
                    yield from ("--health-cmd", json.dumps(test))
                    yield from (text for option, flag in _HEALTH.items() for text in (flag, str(value[option])))
                case _:
                    raise KeyError(f"{name}: {key}")

    def _filled(self, value: Any) -> Any:
        """Replace the variables in all texts, with their defaults where .env does not set them."""
        if isinstance(value, dict):
            return {key: self._filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._filled(each) for each in value]
        if isinstance(value, str):
            return _VARIABLE.sub(self._value, value)
        return value

    def _value(self, found: re.Match[str]) -> str:
        name, default = found.groups()
        return self._variables[name] if default is None else self._variables.get(name, default)
