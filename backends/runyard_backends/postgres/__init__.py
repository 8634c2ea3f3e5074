"""The Postgres stores. These stores have the authoritative state of runyard. Their tables are in ``migrations``, their stored
functions in ``functions``, and the statements that Python sends in ``queries.sql``. ``schema.sql`` shows all tables and the
signatures of all functions.
"""
