"""The Postgres store, which holds the authoritative state of runyard. Its tables are in ``migrations``, its stored functions in
``functions``, and the statements that Python sends in ``queries.sql``; ``schema.sql`` shows what they amount to.
"""
