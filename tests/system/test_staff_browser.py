"""Works as support staff in a browser: chooses a store in the header, switches in another tab, adds a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from playwright.sync_api import Page, expect

from tests.staff.names import operator_reads_names
from tests.support import change, seen

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("beside_a_loop")]


@pytest.fixture
def customers(site: str, stores: list[UUID]) -> Iterator[str]:
    """Give two stores names and customers; yield the address of their list."""
    for name, store, people in (("Acme Hair", stores[0], ("Ada", "Alan")), ("Beta Cuts", stores[1], ("Barbara",))):
        change("UPDATE store SET name = %s WHERE id = %s", name, store)
        for person in people:
            address = f"{person.lower()}@example.com"
            change(
                "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, %s, %s)",
                uuid4(),
                store,
                person,
                address,
            )
    with operator_reads_names():
        yield f"{site}staff/salon/customer/"
    change("TRUNCATE customer CASCADE")
    change("DELETE FROM store WHERE name = 'Gamma Nails'")
    change("DELETE FROM django_session; DELETE FROM django_admin_log")


def switch(page: Page, name: str) -> None:
    """Search in the header, and choose what is found."""
    page.fill("#salon-jobs-switcher-text", name[:4].lower())
    page.press("#salon-jobs-switcher-text", "Enter")
    page.click(f"#salon-jobs-stores button:has-text('{name}')")


def test_store_is_chosen_in_the_header(page: Page, customers: str, tmp_path: Path) -> None:
    """Another tab cannot write into it."""
    page.set_viewport_size({"width": 1366, "height": 480})
    page.goto(customers)
    expect(page.locator("#salon-jobs-reason")).to_have_text(
        "Customers belong to one store at a time, and none is chosen."
    )
    switch(page, "Acme Hair")
    expect(page).to_have_url(customers)
    expect(page.locator("#salon-jobs-switcher strong")).to_have_text("Acme Hair")
    expect(page.locator("#result_list tbody th")).to_have_text(["Ada", "Alan"])
    folder = Path(os.environ.get("PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / "admin-switcher.png")

    page.click("#result_list a:text-is('Ada')")
    page.fill("#id_name", "Ada Lovelace")
    other = page.context.new_page()
    other.goto(customers)
    switch(other, "Beta Cuts")
    expect(other.locator("#result_list tbody th")).to_have_text(["Barbara"])
    page.click("input[name=_save]")
    expect(page.locator("#salon-jobs-reason")).to_contain_text("Nothing was changed")
    assert seen("SELECT name FROM customer ORDER BY name") == [("Ada",), ("Alan",), ("Barbara",)]

    other.goto(f"{customers}../store/add/")
    other.fill("#id_name", "Gamma Nails")
    other.click("input[name=_save]")
    expect(other.locator("#salon-jobs-switcher strong")).to_have_text("Gamma Nails")
    expect(other.locator("#result_list tbody th")).to_have_text(["Gamma Nails"])
    other.goto(f"{customers}../../choose-store/")
    expect(other.locator("h2", has_text="Last used")).to_be_visible()
    other.click("#salon-jobs-stores button:text-is('No store')")
    expect(other.locator("#salon-jobs-switcher")).to_contain_text("no store")
    chosen = "SELECT object_repr FROM django_admin_log WHERE change_message LIKE 'Chose%%' ORDER BY id"
    assert seen(chosen) == [("Acme Hair",), ("Beta Cuts",), ("Gamma Nails",)]
