"""Is the job flow, in the order the data moves: task, payload, enqueue, store, executor, worker, rescuer."""
