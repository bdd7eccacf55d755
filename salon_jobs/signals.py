"""Signals of a job's life. A signal without receivers costs nothing.

The sender is the task. Django logs what a receiver raises; it changes nothing.
"""

from typing import Final

from django.dispatch import Signal

job_enqueued: Final = Signal()
"""Jobs were added in the caller's transaction, which may still be rolled back.

``handles`` has one per job, in order. An ``enqueue_many`` sends one signal; a fan-out, which does not know the ids,
sends none.
"""

job_started: Final = Signal()
"""An attempt begins: ``job`` is what ``current_job()`` returns.

Sent on the thread that runs it, before its transaction.
"""

job_finished: Final = Signal()
"""The end of an attempt is committed.

``job`` is as in ``job_started``, ``state`` the job's new state (queued, if it runs again), and ``error`` what its
handler raised, or None. For a success it is sent on the thread that records successes, so a slow receiver delays those
of other jobs. An attempt that ends with its process sends no such signal.
"""
