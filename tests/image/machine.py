"""What a machine must be able to do to run the image: podman as root, in a store of its own, and a base from Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from ipaddress import ip_network
from itertools import islice
from pathlib import Path
from typing import Final

from tests.interpreter import ROOT

SUITE: Final = "trixie"  # its Python is the 3.13 that the Dockerfile asks for
MIRROR: Final = "http://deb.debian.org/debian"
BASE: Final = "localhost/python:3.13-slim"
NETWORK: Final = "salon"
_PACKAGES: Final = ("python3", "python3-venv", "python3-pip", "ca-certificates", "wget", "systemd-sysv")
_TOOLS: Final = ("podman", "runc", "debootstrap")
_PATIENCE_S: Final = 900
_CONFIGURATION: Final = """
[containers]
# Podman's own are higher than root may set without CAP_SYS_RESOURCE.
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{home}/tmp"
volume_path = "{home}/volumes"
[network]
network_backend = "netavark"
network_config_dir = "{home}/networks"
"""
_STORAGE: Final = """
[storage]
driver = "{driver}"
graphroot = "{home}/store"
runroot = "{home}/run"
"""
#: files by which this machine reaches its package registries
REGISTRIES: Final = tuple(
    f"--volume={path}:{path}:ro" for path in ("/etc/pip.conf", "/etc/ssl/certs") if Path(path).exists()
)
_RUN: Final = ("run", "--rm", "--pull", "never")
# All that the services are given, for a program that is not ours.
_SERVED: Final = (
    *(*_RUN, "--detach", "--name", "trial", "--init", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--network", NETWORK, "--publish", "127.0.0.1::8000", "--user", "10001"),
    *(BASE, "python", "-m", "http.server", "8000"),
)
_ASKED: Final = (*_RUN, "--network", NETWORK, BASE, "wget", "--quiet", "--spider", "--tries", "5")
_DOWNLOADED: Final = (*_RUN, "--network", "host", *REGISTRIES, BASE, "pip", "download", "--no-deps", "asgiref")


class CannotRun(Exception):
    """Raised when this machine cannot run containers, whatever is in them."""


class PodmanFailed(Exception):
    """Raised with what podman said."""


class Podman:
    """Podman with its own storage, network and configuration below one folder; ``close`` ends and removes all of it."""

    def __init__(self, driver: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="salon-image-", dir="/var/tmp"))
        (self.home / "networks").mkdir()
        for name, text in (("containers", _CONFIGURATION), ("storage", _STORAGE)):
            (self.home / f"{name}.conf").write_text(text.format(home=self.home, driver=driver))
        self._environment = os.environ | {
            "CONTAINERS_CONF": str(self.home / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.home / "storage.conf"),
        }

    def __call__(self, *arguments: str, check: bool = True, stdin: str = "") -> str:
        """Run a command of podman and return its output, both streams. Raises PodmanFailed."""
        done = subprocess.run(
            ["podman", *arguments],
            env=self._environment,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            cwd=ROOT,
        )
        if check and done.returncode:
            raise PodmanFailed(f"podman {' '.join(arguments)}\nended with status {done.returncode}:\n{done.stdout}")
        return done.stdout

    def succeeds(self, *arguments: str) -> bool:
        """Return whether a command of podman ends with status 0."""
        try:
            self(*arguments)
        except PodmanFailed:
            return False
        return True

    def inspect(self, container: str, what: str) -> str:
        return self("inspect", "--format", f"{{{{.{what}}}}}", container).strip()

    def address(self, container: str) -> str:
        """Return the address of a container in the network, which this machine reaches."""
        return self.inspect(container, f"NetworkSettings.Networks.{NETWORK}.IPAddress")

    def addresses(self) -> Iterator[str]:
        """Yield the addresses of the network from the hundredth on; podman gives the first ones away."""
        subnet = self("network", "inspect", "--format", "{{(index .Subnets 0).Subnet}}", NETWORK).strip()
        return map(str, islice(ip_network(subnet).hosts(), 100, None))

    def published(self, container: str) -> str:
        """Return the address at which this machine publishes a container's port."""
        return self("port", container).split(" -> ")[1].strip()

    def close(self) -> None:
        """End the containers and remove everything."""
        self("rm", "--force", "--all", "--time", "0", "--volumes", check=False)
        self("network", "rm", NETWORK, check=False)
        self("unmount", "--all", "--force", check=False)
        shutil.rmtree(self.home, ignore_errors=True)


def podman_with_base() -> Podman:
    """Return a podman that has the base and the network, and ran a container in it. Raises CannotRun."""
    if os.geteuid() != 0:
        raise CannotRun("containers are run by root here, and this is not root")
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise CannotRun(f"not installed: {', '.join(missing)}")
    base = _base()
    reasons: list[str] = []
    for driver in ("overlay", "vfs"):
        podman = Podman(driver)
        try:
            podman("import", "--quiet", str(base), BASE)
            podman("network", "create", "--disable-dns", NETWORK)
            podman(*_SERVED)
            inside = f"{podman.address('trial')}:8000"
            podman(*_ASKED, "--retry-connrefused", f"http://{inside}/")
            for address in (inside, podman.published("trial")):
                urllib.request.urlopen(f"http://{address}/", timeout=10).close()
            podman(*_DOWNLOADED)
            podman("rm", "--force", "--time", "0", "trial")
        except (PodmanFailed, OSError, subprocess.TimeoutExpired) as error:
            reasons.append(f"With {driver}: {str(error)[-1000:]}")
            podman.close()
        else:
            return podman
    raise CannotRun("\n".join(reasons))


def _base() -> Path:
    """Return the archive of a small Debian with Python, made on first use. Raises CannotRun."""
    home = ROOT / ".image"
    base = home / f"{SUITE}.tar"
    if not base.exists():
        home.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="salon-base-", dir="/var/tmp") as folder:
            root = Path(folder)
            include = f"--include={','.join(_PACKAGES)}"
            _run("debootstrap", "--variant=minbase", include, SUITE, folder, MIRROR)
            (root / "usr/bin/python").symlink_to("python3")
            for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
                marker.unlink()
            shutil.rmtree(root / "var/cache/apt")
            _run("tar", "--directory", folder, "--create", "--file", f"{base}.part", ".")
            Path(f"{base}.part").rename(base)
    return base


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRun(f"{command[0]} ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
