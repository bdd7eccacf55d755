"""Opens the admin's pages as other projects have them: numbers and times of their locale, admin sites of their own."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client, override_settings
from django.urls import reverse

from salon_jobs.admin import _in_order_of_use, register
from salon_jobs.core.errors import ConfigurationError
from tests.admin.pages import ADMIN, Rows, html_of, page_of
from tests.management.operator import add, insert
from tests.support import change

BIG = 1_234_567


def form_of(text: str) -> tuple[str, dict[str, str]]:
    """Return where the form goes that retries, and what it sends."""
    [form] = [each for each in re.findall(r"<form.*?</form>", text, re.DOTALL) if 'value="retry"' in each]
    [address] = re.findall(r'action="([^"]+)"', form)
    return unescape(address), {**dict(re.findall(r'name="(\w+)" value="([^"]*)"', form)), "action": "retry"}


@pytest.fixture
def big(busy: tuple[Rows, Rows]) -> int:
    """Give one failed job an id that is written with separators, and a kind."""
    add(id=BIG, state="failed", fingerprint=-7 * BIG)
    return BIG


@override_settings(USE_THOUSAND_SEPARATOR=True, LANGUAGE_CODE="de")
def test_thousand_separators_break_no_form(operator: Client, big: int) -> None:
    for page in (f"job/{big}/change/", "job/failures/", "dashboard/"):
        text = html_of(operator, page)
        assert "1.234.567" not in text, page
        assert not re.search(r'(?:value|href|id|action|data-every)="[^"]*\d[.,]\d{3}', text), page
    for page in (f"job/{big}/change/", "job/failures/"):
        address, fields = form_of(html_of(operator, page))
        question = operator.post(address, fields).content.decode()
        assert "1 job selected" in question, page
        assert f'name="newest" value="{big}"' in question
    change("INSERT INTO salon_jobs_job (task) SELECT 'ping' FROM generate_series(1, 10001)")
    text = html_of(operator, "job/?queue=default")
    assert "10,000+ jobs" in text
    assert "0.00+" not in text


@override_settings(ROOT_URLCONF="tests.admin.ops_urls")
def test_own_site_links_its_own_pages(operator: Client, big: int) -> None:
    """It has no inline style, which a strict policy would block."""
    for page in ("dashboard/", "job/", f"job/{big}/change/", "job/failures/", "blockedaggregate/", "message/"):
        answer = operator.get(f"/admin/ops/salon_jobs/{page}")
        assert answer.status_code == 200
        text = answer.content.decode()
        assert not re.findall(r'"(/admin/(?!ops/)[^"]*)"', text), page
        assert not re.findall(r' style="[^"]*"', text), "a strict policy would block it"


@override_settings(ROOT_URLCONF="tests.admin.own_urls")
def test_own_site_is_the_only_one(operator: Client, big: int) -> None:
    """It has all pages by one call, in the order of the default site, and the page that it registered before."""
    paths = [f"{model._meta.model_name}/" for model in admin.site._registry if model._meta.app_label == "salon_jobs"]
    assert len(paths) == 15
    assert reverse("back-office:salon_jobs_dashboard_changelist") == f"{ADMIN}dashboard/"
    for page in (*paths, f"job/{big}/change/", "job/failures/"):
        answer = operator.get(f"{ADMIN}{page}", follow=True)
        assert answer.status_code == 200, page
    assert "Our jobs" in operator.get(f"{ADMIN}job/").content.decode()
    index = operator.get(ADMIN).content.decode()
    listed = re.findall(r'<tr class="model-(\w+)', index)
    assert listed[:5] == ["dashboard", "job", "jobresult", "cronentrystate", "schedule"]


@pytest.mark.parametrize("site", [admin.AdminSite, "ops", None])
def test_what_is_no_site_is_refused(site: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"register takes an AdminSite, such as AdminSite\(name='ops'\)"):
        register(site)


def test_added_index_links_stay(two: tuple[Rows, Rows]) -> None:
    links = {"name": "Runbooks", "app_url": "/runbooks/", "models": [{"name": "Deploys", "admin_url": "/runbooks/1"}]}
    group = {"name": "Jobs", "app_label": "salon_jobs", "app_url": "/", "models": links["models"]}
    assert _in_order_of_use(lambda request: [links, group])(None) == [links, group]


def test_unknown_filter_value_still_filters(operator: Client, two: tuple[Rows, Rows]) -> None:
    change("INSERT INTO salon_jobs_cron_tick (entry, tick_at) VALUES ('nightly', now())")
    for query in ("job/?task=of-late", "job/?queue=of-late", "job/?fingerprint=5", "crontick/?entry=of-late"):
        text = html_of(operator, query)
        assert "\n0 " in text, query
        assert f'href="?{query.partition("?")[2]}"' in text, "the chosen one is offered"


def test_page_uses_one_time_zone(operator: Client, two: tuple[Rows, Rows]) -> None:
    insert("job_error", job_id=two[0].job, attempt=1, error_class="E", occurred_at="2026-05-06T03:00+00")
    change("UPDATE salon_jobs_blocked_aggregate SET since = '2026-05-06T03:00+00'")
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        assert "2026-05-06 12:00:00" in html_of(operator, f"job/{two[0].job}/change/")
        assert "since 2026-05-06 12:00:00" in html_of(operator, f"message/{two[0].message}/change/")


@pytest.mark.uuid_keys
def test_unconfigured_parts_are_left_out(operator: Client, busy: tuple[Rows, Rows], settings: Any) -> None:
    consumer = {"SOURCE": "rn::nats:::orders", "TASKS": {"order.created": "ping"}}
    settings.SALON_JOBS = {**settings.SALON_JOBS, "CONSUMERS": {"orders": consumer}}
    parts = {
        "job/": [
            "Salon 0",
            "a class of errors, or the ID of a store",
            "Pause or resume queue, task or store of selected jobs",
        ],
        f"job/{busy[0].job}/change/": ["Pause or resume queue, task or store"],
        "dashboard/": ["Salon 0", "Parked", "Rejected", "Messages"],
        "": ["Messages", "Incoming messages"],
        "job/?": ["Fan-outs"],
        "schedule/add/": ["within its store"],
        "limit/add/": ["a store's ID"],
    }
    for page, words in parts.items():
        text = page_of(operator, page)
        assert [word for word in words if word not in text] == [], page
    configured = {key: value for key, value in settings.SALON_JOBS.items() if key not in ("STORE_MODEL", "CONSUMERS")}
    settings.SALON_JOBS = {**configured, "MEMBERSHIP_MODEL": None, "OUTBOX": {**configured["OUTBOX"], "PRODUCER": None}}
    for page, words in parts.items():
        text = page_of(operator, page)
        assert [word for word in words if word in text] == [], page
    assert operator.get(f"{ADMIN}job/{busy[0].job}/change/").status_code == 200
