"""The Postgres store: the truth of runyard. SQL is in ``migrations`` (schema and stored functions) and ``sql`` (statements)."""
