"""The stores of a program without workers, on SQLite and on MySQL or MariaDB.

The stores have the checkpointer, the threads with their message trees, external runs and HITL requests. The logic is in Python,
because these databases have no sufficient stored functions. :mod:`.database` has the transactions. ``queries.sql`` has the
statements. A call that needs a worker or Redis raises CapabilityMissingError (R14).
"""
