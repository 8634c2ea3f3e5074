"""The HTTP API. :func:`runyard_api.http.app.asgi_app` makes the application."""
