"""``salon_jobs limit``, ``pause`` and ``resume``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from django.core.management.base import CommandError, CommandParser
from rich.text import Text

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.records import JobState
from salon_jobs.core.units import short_rate
from salon_jobs.jobs import limits
from salon_jobs.management.arguments import add_options, unknown_names
from salon_jobs.management.output import Console
from salon_jobs.management.subcommands import VerbSubcommand
from salon_jobs.models import Job, Limit
from salon_jobs.tenancy.names import store_names
from salon_jobs.verbs import verbs_of
from salon_jobs.words import pause_of


class SetLimits(VerbSubcommand):
    """Subcommand that sets the limits of one queue, task, store or key; without options it lists all limits."""

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser.add_mutually_exclusive_group(), "--queue", "--task", "--store")
        parser.add_argument("--key", help="with --task: its jobs that have this concurrency key")
        most = parser.add_mutually_exclusive_group()
        most.add_argument(
            "--max-concurrency", type=int, metavar="N", help="at most this many at once, whatever is declared"
        )
        most.add_argument("--lift", action="store_true", help="remove the concurrency limit, even one declared in code")
        most.add_argument("--as-declared", action="store_true", help="restore the limit declared in code")
        rate = parser.add_mutually_exclusive_group()
        rate.add_argument("--rate", metavar="R", help="at most this many start: 5 or 5/s, 100/m, 1000/h, 10/d")
        rate.add_argument("--no-rate", action="store_true", help="any number start, or as many as declared in code")
        parser.add_argument("--burst", type=int, metavar="N", help="this many starts are saved up by a quiet time")
        add_options(parser, "--json")

    def run(self, console: Console) -> None:
        """Set the limit, if one is named, and write the current limits. Raises CommandError, OptionInvalid."""
        scope = console.given("queue", "task", "key", store_id="store")
        # Omitted options keep their value.
        values = console.given("max_concurrency", "rate", "burst")
        values |= {"max_concurrency": None} if console["as_declared"] else {}
        values |= {"rate": None} if console["no_rate"] else {}
        values |= {"lift": True} if console["lift"] else {}
        if scope and not values:
            raise CommandError(
                "nothing to set: pass --max-concurrency, --lift, --as-declared, --rate, --no-rate or --burst"
            )
        if values and not scope:
            raise CommandError("nothing to limit: pass --queue, --task (with --key) or --store")
        if values:
            self.verb.call([limits.scope_named(**scope)], **scope, **values, using=console.using)
        rows: list[Sequence[object]] = [("limit", "paused", "at once", "rate", "declared", "why")]
        listed = limits.list_limits(using=console.using)
        for limit in listed:
            paused = Text("yes", "yellow") if limit.paused else None
            most, declared = (None if n is None else f"{n:,}" for n in (limit.max_concurrency, limit.declared))
            rate = limit.rate and short_rate(limit.rate)
            is_store = limit.kind == "store" and limit.name != "*"
            name = store_names([store_key().parse(limit.name)]).popitem()[1] if is_store else limit.name
            why = pause_of(limit) if limit.paused and (limit.paused_by or limit.paused_at) else ""
            why = "; ".join(part for part in (name if name != limit.name else "", why) if part)
            rows.append((f"{limit.kind} {limit.name}", paused, "lifted" if limit.lifted else most, rate, declared, why))
        console.listing(list(map(asdict, listed)), rows, "no limit is set or declared")


class Pause(VerbSubcommand):
    """Subcommand that stops or resumes starting the jobs of one queue, task or store."""

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser.add_mutually_exclusive_group(required=True), "--queue", "--task", "--store")
        add_options(parser, *(["--yes"] if self.verb.takes_by else []), "--json")

    def run(self, console: Console) -> None:
        """Pause or resume, and report it. Raises CommandError for a name of no task and no waiting job: a typo?"""
        [(kind, value)] = console.given("queue", "task", "store").items()
        verb, name = self.verb, limits.limit_name(Limit.Kind(kind), str(value))
        if verb.takes_by and not console["yes"] and list(unknown_names(console.options)):
            queued = Job.objects.using(console.using).filter(state=JobState.QUEUED, **{kind: name})
            if not queued.exists():
                raise CommandError(f"Unknown {kind} {name!r}; nothing was {verb.done}. Pass --yes to pause it anyway.")
        console.change_named(verb, name, kind=kind)


_VERBS: Final = verbs_of(Limit)
LIMITS: Final = (Pause(_VERBS["pause"]), Pause(_VERBS["resume"]), SetLimits(_VERBS["limit"]))
