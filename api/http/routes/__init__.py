"""The routes, one module per resource (semantics: A)."""
