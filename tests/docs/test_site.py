"""Builds the documentation site, and follows every link, anchor and picture of what was built."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from project.local.azurite.install import NODE
from project.local.site import build, public_names
from salon_jobs import signals
from tests.docs.markdown import PAGES, ROOT, read
from tests.interpreter import run_command


@dataclass
class Page(HTMLParser):
    """One page of the site: its anchors, its links, and what a browser loads with it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loaded.append(values["href"])
        elif tag in ("script", "img", "iframe") and "src" in values:
            self.loaded.append(values["src"])


# What people type who know another queue, and the page that answers it.
SYNONYMS: Final = {
    **dict.fromkeys(("dead letter", "dead-letter queue"), "how-to/failed-jobs/"),
    **dict.fromkeys(("periodic", "periodic tasks", "recurring"), "how-to/cron-and-fan-out/"),
    **dict.fromkeys(("rate limit", "throttle"), "how-to/pause-and-limit/"),
    **dict.fromkeys(("unique", "unique jobs", "deduplicate"), "how-to/job-keys/"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    folder = build(tmp_path_factory.mktemp("site")).parent
    pages: dict[Path, Page] = {}
    for path in folder.rglob("*.html"):
        pages[path] = Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    assert len(pages) >= len(PAGES)
    return pages


def target_of(page: Path, link: str) -> tuple[Path, str]:
    parts = urlsplit(link)
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return (path / "index.html" if path.is_dir() else path), unquote(parts.fragment)


def test_links_and_anchors_exist(site: dict[Path, Page]) -> None:
    for path, page in site.items():
        for link in page.links if path.name != "404.html" else ():
            if not urlsplit(link).scheme:
                target, anchor = target_of(path, link)
                assert target.is_file(), f"{path}: {link}"
                assert not anchor or target not in site or anchor in site[target].anchors, f"{path}: {link}"


def test_page_loads_nothing_from_elsewhere(site: dict[Path, Page]) -> None:
    for path, page in site.items():
        for source in page.loaded:
            assert not urlsplit(source).netloc, f"{path} loads {source}"
            assert path.name == "404.html" or target_of(path, source)[0].is_file(), f"{path}: {source}"


def test_page_names_version_and_repository(site: dict[Path, Page]) -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    for path, page in site.items():
        assert project["urls"]["Source"] in page.links, path
        assert f"salon_jobs {project['version']}" in path.read_text(encoding="utf-8"), path


def test_public_api_page_names_options(site: dict[Path, Page]) -> None:
    [(path, page)] = [each for each in site.items() if each[0].parts[-3:-1] == ("reference", "public-api")]
    text = path.read_text(encoding="utf-8")
    assert "Unpack" not in text
    assert "How long the handler's result is kept after a success" in text
    assert {"#salon_jobs.task", "#salon_jobs.control.pause"} < set(page.links)


def test_search_knows_words_of_other_queues(site: dict[Path, Page]) -> None:
    folder = next(path.parent for path in site if path.name == "404.html")
    [worker] = (folder / "assets/javascripts/workers").glob("search.*.js")
    files = (str(ROOT / "tests/docs/search.js"), str(worker), str(folder / "search.json"))
    done = run_command(str(NODE), *files, *SYNONYMS)
    assert done.returncode == 0, done.stderr
    locations = [(json.loads(line) or [""])[0] for line in done.stdout.splitlines()]
    first = {query: location.partition("#")[0] for query, location in zip(SYNONYMS, locations, strict=True)}
    assert first == SYNONYMS


def test_page_is_in_navigation_once() -> None:
    listed = re.findall(r"[\w/-]+\.md", json.dumps(yaml.safe_load(read("mkdocs.yml"))["nav"]))
    joined = {"changelog.md", "contributing.md"}
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert sorted(listed) == sorted(pages | joined)


def test_public_names_have_docstrings(site: dict[Path, Page]) -> None:
    [page] = [page for path, page in site.items() if path.parts[-3:] == ("reference", "public-api", "index.html")]
    names = public_names(read("docs/reference/public-api.md"), read("docs/reference/errors.md"))
    assert {"salon_jobs", "salon_jobs.control", "salon_jobs.testing", "salon_jobs.access.operations"} <= set(names)
    assert names["salon_jobs.signals"] == list(vars(signals))[-3:]
    assert {"Publisher", "Verdict"} < set(names["salon_jobs.brokers.publisher"])
    assert {"Source", "Delivery"} < set(names["salon_jobs.brokers.source"])
    assert len(names["salon_jobs.core.errors"]) > 30
    assert {f"{module}.{name}" for module, members in names.items() for name in members} <= page.anchors
