"""A backend in two halves, for suites that need both: what clients ask goes over HTTP, the rest to the store behind it."""

from __future__ import annotations

import inspect
from typing import Any, cast

import httpx

from runyard.errors import CapabilityMissingError
from runyard.ports.scheduling import Effects
from runyard.ports.stores import Backend
from runyard_api.http.settings import ApiSettings
from runyard_backends.http import connect
from tests.http.shared_routes import asgi_app

PARTS = ("threads", "runs", "fan_outs", "feed", "usage", "workers")
"""Where the two meet; the other parts are the store's."""


class Overheard:
    """A port of the API's backend, and the effects of its last verb."""

    def __init__(self, direct: Any) -> None:
        self._direct = direct
        self.effects = Effects()

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._direct, name)

        async def overhear(*args: Any, **kwargs: Any) -> Any:
            answer = await verb(*args, **kwargs)
            found = getattr(answer, "effects", answer)
            if isinstance(found, Effects):
                self.effects = found
            return answer

        return overhear if inspect.iscoroutinefunction(verb) else verb


class Part:
    """A port whose verbs are those of ``remote`` where it has them. Their effects are those that the API applied."""

    def __init__(self, remote: Any, direct: Overheard) -> None:
        self._remote, self._direct = remote, direct

    def __getattr__(self, name: str) -> Any:
        if not hasattr(type(self._remote), name):
            return getattr(self._direct, name)
        verb = getattr(self._remote, name)

        async def tell(*args: Any, **kwargs: Any) -> Any:
            try:
                answer = await verb(*args, **kwargs)
            except CapabilityMissingError:  # of what no client over HTTP does
                return await getattr(self._direct, name)(*args, **kwargs)
            if isinstance(answer, Effects):
                return self._direct.effects
            if isinstance(getattr(answer, "effects", None), Effects):
                answer.effects = self._direct.effects
            return answer

        return tell


class Both:
    """A backend with some parts replaced."""

    def __init__(self, backend: Backend, **parts: Any) -> None:
        self._backend = backend
        self.__dict__.update(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def for_tenant(self, tenant: str) -> Any:
        """The API asks for the tenant that it has."""
        assert tenant == self._backend.tenant
        return self


async def halves(direct: Backend) -> Backend:
    """``direct``, its client's half reached through an API."""
    overheard = {part: Overheard(getattr(direct, part)) for part in PARTS}
    settings = ApiSettings(_env_file=None, requests_per_second=1e6, burst=10**6)
    app = asgi_app(cast(Backend, Both(direct, **overheard)), auth="off", settings=settings)
    remote = await connect("http://localhost", transport=httpx.ASGITransport(app=app))
    parts = {part: Part(getattr(remote, part), overheard[part]) for part in PARTS}
    return cast(Backend, Both(direct, streams=remote.streams, close=remote.close, **parts))
