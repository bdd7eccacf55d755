"""Random mix of requests, jobs, savepoints, errors, lost connections, threads and asyncio on few connections.

Each store has one canary row. Whatever is read is compared with the store that should be current: a row of another
store is a leak, none where there should be one means that the store got lost. ``python -m tests.tenancy.fuzz`` runs it
for long; ``tests/tenancy/test_fuzz.py`` a little. The seed decides what each actor tries, not how they interleave.
"""
