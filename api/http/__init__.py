"""The HTTP API: :func:`api.http.app.asgi_app` makes it."""
