"""Signals of a job's life. A signal without receivers costs nothing.

The sender is the task. Django logs errors of receivers; they have no effect.
"""

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

from django.dispatch import Signal

from salon_jobs.core.errors import Interrupted


class _JobSignal(Signal):
    """Signal with receivers that may raise anything: ``send_robust`` of Django lets a SystemExit through.

    An interrupt of the run passes.
    """

    def _live_receivers(self, sender: object) -> Any:
        # Django 5.0 to 6.1: synchronous receivers, and asynchronous ones.
        calls, coroutines = super()._live_receivers(sender)
        return [_wrap_receiver(each) for each in calls], [_wrap_coroutine_receiver(each) for each in coroutines]


class ReceiverRaised(Exception):
    """Raised in place of a receiver's error that is not an ``Exception``, such as SystemExit."""


def _wrap_receiver(receiver: Callable[..., object]) -> Callable[..., object]:
    @wraps(receiver)
    def call(**named: Any) -> object:
        try:
            return receiver(**named)
        except (Exception, Interrupted):
            raise
        except BaseException as error:
            raise ReceiverRaised(f"{type(error).__name__}: {error}") from error

    return call


def _wrap_coroutine_receiver(receiver: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    @wraps(receiver)
    async def call(**named: Any) -> object:
        try:
            return await receiver(**named)
        except (Exception, Interrupted, CancelledError):
            raise
        except BaseException as error:
            raise ReceiverRaised(f"{type(error).__name__}: {error}") from error

    return call


job_enqueued: Final = _JobSignal()
"""Jobs were added in the caller's transaction, which may still be rolled back.

``handles`` has one per job, in order. An ``enqueue_many`` sends one signal; a fan-out, which does not know the ids,
sends none.
"""

job_started: Final = _JobSignal()
"""An attempt begins: ``job`` is what ``current_job()`` returns.

Sent on the thread that runs it, before its transaction.
"""

job_finished: Final = _JobSignal()
"""The end of an attempt is committed.

``job`` is as in ``job_started``, ``state`` the job's new state (queued, if it runs again), and ``error`` what its
handler raised, or None. If a promotion of the database leaves open whether it is committed, ``state`` is None and
``error`` an ``OutcomeUnknown``. For a success it is sent on the thread that records successes, so a slow receiver
delays those of other jobs. An attempt that ends with its process sends no such signal.
"""
