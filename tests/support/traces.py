"""Spans for tests: those that this process makes (`recorded`), and those that processes export by OTLP (`OtlpReceiver`)."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import opentelemetry.trace
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Sampler


@dataclass(frozen=True)
class Seen:
    """One exported span. ``links``: the id of the linked span, and how the attribute ``runyard.link`` describes it."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str | None
    service: str
    began: int
    ended: int
    failed: bool
    attributes: dict[str, Any] = field(default_factory=dict)
    links: dict[str, Any] = field(default_factory=dict)
    everything: str = ""
    """All texts of the span, to search for content."""


class Spans(list[Seen]):
    """Spans in the order of their arrival."""

    def named(self, name: str) -> list[Seen]:
        return sorted((span for span in self if span.name == name), key=lambda span: span.began)

    def one(self, name: str) -> Seen:
        [found] = self.named(name)
        return found

    def children(self, parent: Seen) -> list[Seen]:
        found = (s for s in self if s.parent_id == parent.span_id and s.trace_id == parent.trace_id)
        return sorted(found, key=lambda span: span.began)

    def tree(self, root: Seen) -> Any:
        """Return the names below ``root``: a name, or a name with the list of its children."""
        children = [self.tree(child) for child in self.children(root)]
        return (root.name, children) if children else root.name

    def orphans(self) -> list[Seen]:
        """Return the spans whose parent was not exported."""
        known = {span.span_id for span in self}
        return [span for span in self if span.parent_id is not None and span.parent_id not in known]


class _Collector(SpanExporter):
    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def export(self, spans: Iterable[ReadableSpan]) -> SpanExportResult:
        self._spans += map(_of_sdk, spans)
        return SpanExportResult.SUCCESS


@contextmanager
def recorded(sampler: Sampler | None = None) -> Iterator[Spans]:
    """Make this process trace inside the ``with`` block. Yield its spans, each when it has ended."""
    provider, spans = TracerProvider(sampler=sampler, resource=Resource({"service.name": "test"})), Spans()
    provider.add_span_processor(SimpleSpanProcessor(_Collector(spans)))
    with using(provider):
        yield spans
    provider.shutdown()


@contextmanager
def using(provider: opentelemetry.trace.TracerProvider) -> Iterator[None]:
    """Make ``provider`` the provider of this process inside the ``with`` block. OpenTelemetry can only set it once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
        yield


class OtlpReceiver:
    """A collector that takes spans by OTLP over HTTP, on a port of its own."""

    def __init__(self) -> None:
        self.spans = Spans()
        self.bodies: list[bytes] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> OtlpReceiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        """Store the spans of one request."""
        self.bodies.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            service = _values(of_resource.resource.attributes).get("service.name", "")
            for scope in of_resource.scope_spans:
                self.spans += (_of_otlp(span, service) for span in scope.spans)


def _of_sdk(span: ReadableSpan) -> Seen:
    context, parent = span.context, span.parent
    assert context is not None
    return Seen(
        name=span.name,
        kind=span.kind.name,
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=None if parent is None else f"{parent.span_id:016x}",
        service=str(span.resource.attributes["service.name"]),
        began=span.start_time or 0,
        ended=span.end_time or 0,
        failed=not span.status.is_ok,
        attributes=dict(span.attributes or {}),
        links={f"{link.context.span_id:016x}": (link.attributes or {}).get("runyard.link") for link in span.links},
        everything=span.to_json(),
    )


def _of_otlp(span: Any, service: str) -> Seen:
    return Seen(
        name=span.name,
        kind=type(span).SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        service=service,
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        failed=span.status.code == 2,
        attributes=_values(span.attributes),
        links={link.span_id.hex(): _values(link.attributes).get("runyard.link") for link in span.links},
        everything=str(span),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
