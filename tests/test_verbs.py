"""Holds each operators' verb to what it names elsewhere: permissions, states, arguments, commands and actions."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from django.contrib import admin

import salon_jobs.admin  # noqa: F401 - registers the pages
from salon_jobs.core.records import JobState
from salon_jobs.management.subcommands import VerbSubcommand
from salon_jobs.management.subcommands.messages import ACTIONS
from salon_jobs.management.subcommands.registry import SUBCOMMANDS
from salon_jobs.models import InboxMessage, Job
from salon_jobs.verbs import VERBS, Verb


def named(verb: Verb) -> str:
    return f"{verb.of.__name__}-{verb.name}"


@pytest.mark.parametrize("verb", VERBS, ids=named)
def test_verb_permissions_exist(verb: Verb) -> None:
    known = set()
    for model in {verb.of, *(each.of for each in VERBS)}:
        known |= {f"{action}_{model._meta.model_name}" for action in model._meta.default_permissions}
        known |= {codename for codename, _ in model._meta.permissions}
    assert set(verb.permissions) <= known


@pytest.mark.parametrize("verb", VERBS, ids=named)
def test_verb_function_takes_arguments(verb: Verb) -> None:
    parameters = inspect.signature(verb.change).parameters
    assert set(verb.takes) <= set(parameters)
    assert not verb.takes_by or "by" in parameters


@pytest.mark.parametrize("verb", VERBS, ids=named)
def test_verb_states_are_model_states(verb: Verb) -> None:
    """Those that no column holds are what a page calls a row: "blocked" messages, "declared" entries."""
    field = next((each for each in verb.of._meta.fields if each.name in ("state", "status")), None)
    states = {"sending", "paused", "declared", "active"} if field is None else {*dict(field.flatchoices), "blocked"}
    states = {*JobState} if verb.of is Job else states
    assert {*verb.effects, *verb.offered_in, *verb.matching} <= states


@pytest.mark.parametrize("verb", VERBS, ids=named)
def test_admin_offers_verbs_with_permission(verb: Verb) -> None:
    actions: Any = admin.site.get_model_admin(verb.of).actions
    assert (verb in [action.verb for action in actions]) == bool(verb.permissions)


@pytest.mark.parametrize("verb", VERBS, ids=named)
def test_commands_have_verbs_with_help(verb: Verb) -> None:
    commands = [each.verb for each in (*SUBCOMMANDS, *ACTIONS) if isinstance(each, VerbSubcommand)]
    assert (verb in commands or verb.of is InboxMessage) == bool(verb.help)
