"""Holds each operators' verb to what it names elsewhere: permissions, states, arguments, commands and actions."""

from __future__ import annotations

import inspect
from typing import Any

from django.contrib import admin

import salon_jobs.admin  # noqa: F401 - registers the pages
from salon_jobs.core.records import JobState
from salon_jobs.management.subcommands import VerbSubcommand
from salon_jobs.management.subcommands.messages import ACTIONS
from salon_jobs.management.subcommands.registry import SUBCOMMANDS
from salon_jobs.models import InboxMessage, Job
from salon_jobs.verbs import VERBS


def test_verb_permissions_exist() -> None:
    known = set()
    for model in {each.of for each in VERBS}:
        known |= {f"{action}_{model._meta.model_name}" for action in model._meta.default_permissions}
        known |= {codename for codename, _ in model._meta.permissions}
    assert [verb for verb in VERBS if not set(verb.permissions) <= known] == []


def test_verb_function_takes_arguments() -> None:
    for verb in VERBS:
        parameters = inspect.signature(verb.change).parameters
        assert set(verb.takes) <= set(parameters), verb
        assert not verb.takes_by or "by" in parameters, verb


def test_verb_states_are_model_states() -> None:
    """Those that no column holds are what a page calls a row: "blocked" messages, "declared" entries."""
    for verb in VERBS:
        field = next((each for each in verb.of._meta.fields if each.name in ("state", "status")), None)
        states = {"sending", "paused", "declared", "active"} if field is None else {*dict(field.flatchoices), "blocked"}
        states = {*JobState} if verb.of is Job else states
        assert {*verb.effects, *verb.offered_in, *verb.matching} <= states, verb


def test_admin_offers_verbs_with_permission() -> None:
    for verb in VERBS:
        actions: Any = admin.site.get_model_admin(verb.of).actions
        assert (verb in [action.verb for action in actions]) == bool(verb.permissions), verb


def test_commands_have_verbs_with_help() -> None:
    commands = [each.verb for each in (*SUBCOMMANDS, *ACTIONS) if isinstance(each, VerbSubcommand)]
    for verb in VERBS:
        assert (verb in commands or verb.of is InboxMessage) == bool(verb.help), verb
