"""Follows the page on deleting users, stores and parents: as the real roles, in strict mode, in two stores."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psycopg

from tests.databases import rows
from tests.docs.crm_project import FILES
from tests.docs.markdown import ROOT, Block, blocks, read
from tests.interpreter import run_python
from tests.settings import url_for

ISOLATED: Final = 'options={"constraints": [StoreIsolation(field="id", name="organization_isolation")]},'
PROJECT: Final = {
    "manage.py": FILES["manage.py"],
    "mysite.py": FILES["mysite.py"].replace("[", '["django.contrib.auth", ', 1)
    + 'SALON_JOBS |= {"ROLES": {}, "STRICT": True}\n',
    "accounts/models.py": """
from django.db import models
from salon_jobs.access import StoreIsolation
class Organization(models.Model):
    name = models.TextField()
    class Meta:
        constraints = [StoreIsolation(field="id", name="organization_isolation")]
""",
    "accounts/migrations/0001_initial.py": FILES["accounts/migrations/0001_initial.py"]
    .replace("from django.db", "from salon_jobs.access import StoreIsolation\nfrom django.db")
    .replace("models.TextField())]\n", f"models.TextField())],\n            {ISOLATED}\n"),
    **dict.fromkeys(("accounts/migrations/__init__.py", "crm/migrations/__init__.py"), ""),
}
ROWS: Final = """
INSERT INTO auth_user (id, username, password, is_superuser, is_staff, is_active, first_name, last_name, email,
                       date_joined)
VALUES (1, 'ann', '', false, false, true, '', '', '', now()), (2, 'bob', '', false, false, true, '', '', '', now());
INSERT INTO accounts_organization (name) VALUES ('A'), ('B');
INSERT INTO crm_contact (organization_id, owner_id) SELECT o.id, u.id FROM accounts_organization AS o, auth_user AS u;
INSERT INTO crm_activity (contact_id, author_id) SELECT id, owner_id FROM crm_contact;
"""
LEFT: Final = """
SELECT (SELECT array_agg(username::text) FROM auth_user), (SELECT array_agg(owner_id ORDER BY id) FROM crm_contact),
       (SELECT array_agg(author_id) FROM crm_activity), (SELECT array_agg(name) FROM accounts_organization)
"""


def test_deleting_page(tmp_path: Path, fresh: str, bootstrapped: dict[str, str]) -> None:
    def run(role: str, *words: str) -> None:
        environment = {"DATABASE_URL": url_for(role, fresh), "ROLES": "{}", "PYTHONPATH": str(ROOT)}
        done = run_python("manage.py", *words, environment=environment, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "W0" not in done.stderr

    def call(block: Block, after: str = "") -> tuple[object, ...]:
        run(block.action.removeprefix("call "), "shell", "-v", "0", "-c", block.text + after)
        [left] = rows(fresh, LEFT)
        return left

    steps = [block for block in blocks(read("docs/how-to/deleting.md")) if block.action]
    modules = {block.action.removeprefix("write "): block.text for block in steps if "write" in block.action}
    for path, text in {**PROJECT, **modules}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    commands = "".join(f"; call_command({command})" for command in ("'makemigrations', 'crm'", "'migrate'"))
    run("migrator", "shell", "-v", "0", "-c", f"from django.core.management import call_command{commands}")
    with psycopg.connect(url_for(None, fresh), autocommit=True) as owner:
        owner.execute(ROWS.encode())
    delete_user, delete_everywhere, delete_store = (block for block in steps if "call" in block.action)
    assert call(delete_user) == (["bob"], [None, 2, None, 2], [2, 2], ["A", "B"])
    drain = "\nfrom salon_jobs.testing import drain_jobs; drain_jobs()"
    assert call(delete_everywhere, drain) == (None, [None] * 4, None, ["A", "B"])
    assert call(delete_store) == (None, [None] * 2, None, ["B"])
