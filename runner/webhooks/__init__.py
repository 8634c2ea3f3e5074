"""Webhooks: what was committed, told to a URL (semantics: R11, E5). Signed, retried, at least once."""
