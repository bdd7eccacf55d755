"""Reads the examples for Kubernetes and systemd: real commands with real options, probes, and secrets of their own."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from django.core.management import load_command_class

from tests.deployment.compose import RUNTIMES, SERVICES
from tests.docs.markdown import blocks, read
from tests.interpreter import ROOT, run_command

KUBERNETES = sorted((ROOT / "docker" / "kubernetes").glob("*.yaml"))
UNITS = sorted((ROOT / "docker" / "systemd").glob("*.service"))
OBJECTS: dict[str, dict[str, Any]] = {
    f"{each['kind']}/{each['metadata']['name']}": each
    for path in KUBERNETES
    for each in yaml.safe_load_all(path.read_text())
}
PODS = {name: each for name, each in OBJECTS.items() if each["kind"] in ("Deployment", "Job")}
COMMANDS = ("runworker", "runscheduler", "relay_outbox", "consume_queue", "bootstrap_roles")


def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["spec"]["template"]["spec"]["containers"]
    return dict(found)


def unit(path: Path) -> dict[str, list[str]]:
    """Return the values of a unit by key."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", path.read_text().replace("\\\n", ""), re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def commands() -> dict[str, list[str]]:
    """Return what every example runs by manage.py."""
    found: dict[str, list[str]] = {
        f"compose/{name}": each["command"]
        for name, each in SERVICES.items()
        if each.get("image") == "salon-jobs" and "entrypoint" not in each
    }
    found |= {name: container(pod)["args"] for name, pod in PODS.items() if "command" not in container(pod)}
    for path in UNITS:
        words = shlex.split(unit(path)["ExecStart"][0])
        if words[1:2] == ["manage.py"]:
            found[path.name] = words[2:]
    return found


@pytest.mark.parametrize(("where", "words"), commands().items(), ids=commands())
def test_commands_and_options_exist(where: str, words: list[str]) -> None:
    command = load_command_class("salon_jobs", words[0])
    parsed = command.create_parser("manage.py", words[0]).parse_args(list(map(str, words[1:])))
    if words[0] in ("runworker", "runscheduler", "relay_outbox", "consume_queue") and "/" in where:
        assert parsed.health_addr[0] == "0.0.0.0", "whoever probes a container is not inside it"


def test_images_have_the_tag_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {container(pod)["image"] for pod in PODS.values()} == {f"salon-jobs:{version}"}


def test_there_are_examples_of_every_process() -> None:
    run = {words[0] for words in commands().values()}
    assert run == {*COMMANDS, "migrate"}
    assert OBJECTS.keys() == {
        "Job/salon-jobs-bootstrap",
        "Job/salon-jobs-migrate",
        "Deployment/salon-jobs-web",
        "Service/salon-jobs-web",
        *(f"Deployment/salon-jobs-{name}" for name in RUNTIMES),
    }
    assert {path.stem for path in UNITS} == {f"salon-jobs-{name}" for name in ("web", "migrate", *RUNTIMES)}


@pytest.mark.parametrize("version", ["1.25", "1.37"])
@pytest.mark.parametrize("name", OBJECTS)
def test_kubernetes_takes_each_object_by_its_published_schemas(name: str, version: str) -> None:
    kubernetes_validate.validate(OBJECTS[name], version, strict=True)


@pytest.mark.parametrize(("name", "port"), RUNTIMES.items())
def test_kubernetes_restarts_by_liveness_alone(name: str, port: int) -> None:
    deployment = OBJECTS[f"Deployment/salon-jobs-{name}"]
    pod, runs = deployment["spec"]["template"], container(deployment)
    [health] = runs["ports"]
    assert health == {"name": "health", "containerPort": port}
    assert f"0.0.0.0:{port}" in runs["args"]
    assert runs["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert runs["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
    assert runs["livenessProbe"]["periodSeconds"] * runs["livenessProbe"]["failureThreshold"] >= 60, "a slow start"
    assert pod["metadata"]["annotations"] == {"prometheus.io/scrape": "true", "prometheus.io/port": str(port)}
    assert pod["spec"]["terminationGracePeriodSeconds"] > 30
    assert {mount["name"] for mount in runs["volumeMounts"]} == {volume["name"] for volume in pod["spec"]["volumes"]}


@pytest.mark.parametrize("name", PODS)
def test_pods_are_unprivileged(name: str) -> None:
    """Each has a secret of its own."""
    pod, runs = PODS[name]["spec"]["template"], container(PODS[name])
    [secret] = runs["envFrom"]
    own = {"migrate": "migrator"}.get(runs["name"], runs["name"])
    assert secret == {"secretRef": {"name": f"salon-jobs-{own}"}}
    assert "env" not in runs
    security = runs["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", [name for name in PODS if name.startswith("Deployment")])
def test_deployments_select_their_own_pods(name: str) -> None:
    spec = OBJECTS[name]["spec"]
    assert OBJECTS[name]["apiVersion"] == "apps/v1"
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == {"app": OBJECTS[name]["metadata"]["name"]}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_stop_in_order(path: Path) -> None:
    """They stop the process that was started, and give it its time."""
    found = unit(path)
    name = path.stem.removeprefix("salon-jobs-")
    assert found["EnvironmentFile"] == [f"/etc/salon-jobs/{name}.env"]
    assert found["User"] == ["salon"]
    assert found["NoNewPrivileges"] == ["yes"]
    if name != "migrate":
        assert found["KillMode"] == ["mixed"]
        assert int(found["TimeoutStopSec"][0]) > 30
        assert found["Restart"] == ["always"]
        assert found["StartLimitIntervalSec"] == ["0"], "systemd would give up after five quick ends"


def test_web_servers_stop_in_order() -> None:
    """They open no control socket, and have their time to stop."""
    # It would lie in a home that is not there, or that may not be written.
    pod = OBJECTS["Deployment/salon-jobs-web"]["spec"]["template"]["spec"]
    [web] = pod["containers"]
    [started] = unit(ROOT / "docker" / "systemd" / "salon-jobs-web.service")["ExecStart"]
    for words in (SERVICES["web"]["command"], web["args"], shlex.split(started)):
        assert "--no-control-socket" in words
    before_s = int(web["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod["terminationGracePeriodSeconds"] > before_s + 30, "gunicorn's graceful timeout"


@pytest.mark.system
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text().replace("/opt/salon-jobs/venv/bin/python", sys.executable)
        text = text.replace("/opt/salon-jobs/venv/bin/gunicorn", sys.executable)
        (tmp_path / path.name).write_text(text)
    done = run_command("systemd-analyze", "verify", "--man=no", *(str(tmp_path / path.name) for path in UNITS))
    said = [line for line in done.stderr.splitlines() if "salon-jobs" in line]
    assert said == [], done.stderr


@pytest.mark.system
def test_systemd_takes_the_short_unit(tmp_path: Path) -> None:
    [block] = [block for block in blocks(read("docs/how-to/deploy.md")) if block.action == "unit"]
    assert f"manage.py {short_command(block.text)}" in block.text
    path = tmp_path / "shop-jobs.service"
    path.write_text(block.text.replace("/srv/shop/venv/bin/python", sys.executable))
    done = run_command("systemd-analyze", "verify", "--man=no", str(path))
    assert "shop-jobs" not in done.stderr, done.stderr


def short_command(unit: str) -> str:
    """Return the command of a unit, which must exist and have these options."""
    name, *words = unit.partition("manage.py ")[2].partition("\n")[0].split()
    load_command_class("salon_jobs", name).create_parser("manage.py", name).parse_args(words)
    return " ".join([name, *words])
