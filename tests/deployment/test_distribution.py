"""Builds the source distribution and the wheel, and uses what they install in a project of its own."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from readme_renderer.markdown import render

from tests.integrations.tiny_project import TinyProject
from tests.interpreter import ROOT

pytestmark = pytest.mark.slow

_BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


@dataclass(frozen=True, slots=True)
class Distribution:
    """The two files, and the metadata of the wheel."""

    sdist: Path
    wheel: Path

    @property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as wheel:
            [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            return message_from_string(wheel.read(name).decode())


def files() -> set[str]:
    """Return the files of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def build(hook: str, source: Path, into: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, hook, str(into)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Deprecat" not in done.stderr


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """Build the source distribution from a clone, and the wheel from the source distribution."""
    clone, built = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    for name in files():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    build("build_sdist", clone, built)
    [sdist] = built.iterdir()
    with tarfile.open(sdist) as archive:
        archive.extractall(clone / "unpacked", filter="data")
    [unpacked] = (clone / "unpacked").iterdir()
    build("build_wheel", unpacked, built)
    [wheel] = built.glob("*.whl")
    return Distribution(sdist, wheel)


def test_the_source_distribution_is_the_repository(distribution: Distribution) -> None:
    with tarfile.open(distribution.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    made = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert names - made == files()
    assert {"CHANGELOG.md", "docs/tutorial.md", "tests/conftest.py"} <= names


def test_the_wheel_holds_the_package_and_nothing_else(distribution: Distribution) -> None:
    with zipfile.ZipFile(distribution.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {name for name in files() if name.startswith("salon_jobs/")}
    assert {"salon_jobs/py.typed", "salon_jobs/static/salon_jobs/dashboard.js"} <= names
    assert any(name.endswith(".sql") for name in names)
    assert any(name.startswith("salon_jobs/templates/") for name in names)


def test_the_metadata_is_complete(distribution: Distribution) -> None:
    metadata = distribution.metadata
    assert (metadata["Name"], metadata["Author"]) == ("salon-jobs", "The salon_jobs developers")
    assert metadata["License-Expression"] == "MIT"
    assert f"## [{metadata['Version']}]" in (ROOT / "CHANGELOG.md").read_text()
    urls = dict(url.split(", ", 1) for url in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Source", "Documentation", "Changelog", "Issues"}
    assert {"binary", "sentry", "health"} <= set(metadata.get_all("Provides-Extra", []))


def test_the_readme_renders_and_its_links_lead_somewhere(distribution: Distribution) -> None:
    metadata, warnings = distribution.metadata, io.StringIO()
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = render(str(metadata.get_payload()), stream=warnings)
    assert page is not None, warnings.getvalue()
    links = [part.partition('"')[0] for part in page.split('href="')[1:]]
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    base = f"{dict(url.split(', ', 1) for url in metadata.get_all('Project-URL', []))['Source']}/blob/"
    ours = [link.removeprefix(base).partition("/")[2].partition("#")[0] for link in links if link.startswith(base)]
    assert len(links) > len(ours) > 20
    assert set(ours) <= files()
    raw = base.replace("/blob/", "/raw/")
    pictures = [part.partition('"')[0] for part in page.split('src="')[1:]]
    assert pictures
    assert {picture.removeprefix(raw).partition("/")[2] for picture in pictures} <= files()


def test_what_is_installed_runs_a_job(distribution: Distribution, tmp_path: Path, empty_url: str) -> None:
    site = tmp_path / "site"
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(distribution.wheel)], check=True
    )
    (tmp_path / "project").mkdir()
    tasks = (
        "from salon_jobs import task\n"
        "@task(name='greet')\n"
        "def greet(name: str) -> None:\n"
        "    import salon_jobs\n"
        "    print(f'hello {name} from {salon_jobs.__file__}')\n"
    )
    project = TinyProject(tmp_path / "project", url=empty_url, tasks=tasks)
    outputs: list[str] = []
    for command in (
        ("check",),
        ("migrate", "--verbosity", "0"),
        ("shell", "--no-imports", "-c", "from shop.tasks import greet; greet.enqueue(name='Ada')"),
        ("runworker", "--burst"),
    ):
        done = project.manage(*command, PYTHONPATH=str(site))
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert f"hello Ada from {site}" in outputs[-1]
