"""Starts the units of docker/systemd under a systemd of their own, beside the brokers and the database of the stack."""

from __future__ import annotations

import re

import pytest

from tests.deployment.compose import RUNTIMES
from tests.image.machine import NETWORK, Podman, PodmanFailed
from tests.image.stack import Stack, build_other

pytestmark = pytest.mark.image
HEALTH = {"web": "http://127.0.0.1:8000/health/"} | {
    name: f"http://127.0.0.1:{port}/readyz" for name, port in RUNTIMES.items()
}
#: what systemd needs to make the file systems of its units, and no more
BOOT = ("run", "--detach", "--systemd", "always", "--cap-add", "SYS_ADMIN", "--cap-add", "MKNOD")


class Machine:
    """A Debian with systemd and the units, none of them started."""

    def __init__(self, podman: Podman) -> None:
        self._podman = podman

    def run(self, *command: str, stdin: str = "") -> str:
        return self._podman("exec", "--interactive", "machine", *command, stdin=stdin)

    def wait_for(self, test: str) -> None:
        """Wait until a line of shell succeeds."""
        self.run("sh", "-c", f"for _ in $(seq 300); do if {test}; then exit; fi; sleep 0.2; done; exit 1")

    def wait_until_ready(self, unit: str) -> None:
        self.wait_for(f"/opt/venv/bin/python /app/docker/healthcheck.py {HEALTH[unit]} 2>/dev/null")

    def show(self, unit: str, *names: str) -> dict[str, str]:
        lines = self.run("systemctl", "show", f"salon-jobs-{unit}", "--property", ",".join(names)).splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def machine(stack: Stack) -> Machine:
    """Boot it with a file of variables for each unit, the ones that compose gives the process."""
    podman = stack.podman
    build_other(podman, "units", "units", base=stack.services["web"]["image"])
    old_cgroups = "--env=SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"
    podman(*BOOT, "--name", "machine", old_cgroups, "--network", NETWORK, *stack.hosts, "--pull", "never", "units")
    machine = Machine(podman)
    try:
        machine.wait_for("systemctl is-system-running --wait --quiet")
    except PodmanFailed as why:
        pytest.skip(f"NOT TESTED: the units, because systemd does not boot in a container here. {str(why)[-500:]}")
    machine.run("mkdir", "--mode", "0700", "/etc/salon-jobs")
    for unit in ("migrate", *HEALTH):
        variables = "".join(f"{name}={value}\n" for name, value in stack.services[unit]["environment"].items())
        machine.run("sh", "-c", f"cat > /etc/salon-jobs/{unit}.env", stdin=variables)
    return machine


def test_units_start_restart_and_stop(machine: Machine) -> None:
    machine.run("systemctl", "start", "salon-jobs-migrate")
    machine.run("systemctl", "enable", "--now", *(f"salon-jobs-{unit}" for unit in HEALTH))
    before: dict[str, str] = {}
    for unit in HEALTH:
        machine.wait_until_ready(unit)
        before[unit] = machine.show(unit, "MainPID")["MainPID"]
        status = machine.run("cat", f"/proc/{before[unit]}/status")
        assert set(re.findall(r"^Cap\w+:\s+(\w+)$", status, re.MULTILINE)) == {"0" * 16}
        assert re.findall(r"^(?:NoNewPrivs|Uid):\s+(\d+)", status, re.MULTILINE) == ["10001", "1"]

    for unit in HEALTH:
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", f"salon-jobs-{unit}")
    for unit in HEALTH:
        machine.wait_for(f"systemctl show salon-jobs-{unit} --property NRestarts | grep --quiet '=1$'")
        machine.wait_until_ready(unit)
        assert machine.show(unit, "MainPID")["MainPID"] != before[unit]

    machine.run("systemctl", "stop", *(f"salon-jobs-{unit}" for unit in HEALTH))
    for unit in HEALTH:
        ended = machine.show(unit, "Result", "ExecMainCode", "ExecMainStatus")
        by_itself = "1"
        assert ended == {"Result": "success", "ExecMainCode": by_itself, "ExecMainStatus": "0"}, unit
