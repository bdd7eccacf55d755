"""Holds bootstrap_sql/roles.sql to the declaration of the roles it is built from."""

from __future__ import annotations

import re

import pytest

from project.local.bootstrap_files import DEMO_OWNER_ROLES, FILE, bootstrap_file
from salon_jobs.access.bootstrap import build_scripts, render_psql
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError


def test_the_file_is_what_the_declaration_says() -> None:
    assert FILE.read_text(encoding="utf-8") == bootstrap_file(), "run `make bootstrap-sql`"
    assert [path.name for path in FILE.parent.iterdir()] == ["roles.sql"]


def test_owner_roles_match_the_demo_settings() -> None:
    assert conf.roles == Roles(extra_owners=DEMO_OWNER_ROLES)


def test_the_file_holds_no_password() -> None:
    values = re.findall(r" PASSWORD (?!is\b|in\b)(\S+)", FILE.read_text(encoding="utf-8"))
    assert values
    assert all(re.fullmatch(r"NULL'\);|:'\w+_password';", value) for value in values)


def test_login_roles_are_restricted() -> None:
    """No login role may be a superuser or bypass row-level security; only owners of functions bypass it."""
    for script in build_scripts(Roles(extra_owners=DEMO_OWNER_ROLES)):
        assert "NOSUPERUSER NOCREATEDB NOCREATEROLE" in script.make
        assert ("'NOLOGIN BYPASSRLS " in script.make) is script.spec.owns_functions
        assert (" NOBYPASSRLS " in script.make) is not script.spec.owns_functions


def test_a_hostile_name_stays_a_name() -> None:
    name = "o'; DROP ROLE \"x"
    text = render_psql(build_scripts(Roles(extra_owners=(name,))))
    assert "CALL pg_temp.make_role('o''; DROP ROLE \"x', " in text
    assert 'GRANT USAGE ON SCHEMA public TO "o\'; DROP ROLE ""x";' in text


def test_one_name_for_two_purposes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="two purposes"):
        build_scripts(Roles(extra_owners=("app",)))
