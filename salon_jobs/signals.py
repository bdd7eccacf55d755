"""Signals of a job's life. Nothing is done for a signal that has no receiver.

The sender is the task. A receiver that raises is logged by Django and changes nothing.
"""

from typing import Final

from django.dispatch import Signal

# Jobs were added, in the caller's transaction, which may still be rolled back. ``handles`` has one for each, in order;
# one signal for an ``enqueue_many``, none for a fan-out, which learns no ids.
job_enqueued: Final = Signal()
# An attempt begins: ``job`` is what ``current_job()`` returns. Sent on the thread that runs it, before its transaction.
job_started: Final = Signal()
# The end of an attempt is committed: ``job`` as above, ``state`` what the job is now (queued, if it is run again), and
# ``error`` what its handler raised, or None. For a success it is sent on the thread that records them: a receiver that
# takes long delays those of other jobs. An attempt that ends with its process has no such signal.
job_finished: Final = Signal()
