"""Routes of the OpenAPI document. Another route returns a page that shows this document with Swagger UI, and further routes
return the page's files."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fastapi import APIRouter, FastAPI, Request, Response

from runyard.errors import RouteNotFoundError

from .document import document

router = APIRouter(include_in_schema=False)

FILES: Final = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
"""Files of the package that the page needs, and their media types."""
PATHS: Final = frozenset({"/openapi.json", "/docs", "/docs/start.js", *(f"/docs/{name}" for name in FILES)})
"""Paths of this module. They need no authentication."""
FOR_A_DAY: Final = {"Cache-Control": "public, max-age=86400"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of the page. The policy allows only scripts of this server. It allows inline styles, because Swagger
UI uses them."""
PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>runyard API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</html>
"""
START: Final = """\
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  displayRequestDuration: true,
  persistAuthorization: false,
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
});
"""


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the OpenAPI document, with the prefix under which the app is mounted."""
    return Response(_as_served(request.app, str(request.scope.get("root_path", ""))), media_type="application/json")


@lru_cache(maxsize=16)
def _as_served(app: FastAPI, root: str) -> bytes:
    made = document(app)
    served = made if not root else {**made, "servers": [{"url": root.rstrip("/")}]}
    return json.dumps(served, ensure_ascii=False).encode()


@router.get("/docs")
async def docs() -> Response:
    """Return the page with Swagger UI."""
    return Response(PAGE, media_type="text/html", headers={"Content-Security-Policy": POLICY})


@router.get("/docs/start.js")
async def start() -> Response:
    """Return the script that starts the page. The script has its own route, because the policy of the page forbids inline
    scripts."""
    return Response(START, media_type="text/javascript")


@router.get("/docs/{name}")
async def file(name: str) -> Response:
    """Return a file of the page. Raises RouteNotFoundError."""
    if name not in FILES:
        raise RouteNotFoundError("the page has no such file")
    return Response(_content(name), media_type=FILES[name], headers=FOR_A_DAY)


@cache
def _content(name: str) -> bytes:
    spec = find_spec("fastapi_offline")
    if spec is None or spec.origin is None:
        raise RouteNotFoundError("the page's files are not installed: pip install 'runyard[http]'")
    return (Path(spec.origin).parent / "static" / name).read_bytes()
