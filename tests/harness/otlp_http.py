"""Sends OTLP/HTTP, and requests as OTLP/JSON from protobuf's own mapping."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {
    "logs": ExportLogsServiceRequest,
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}

_IDS = {"traceId", "spanId", "parentSpanId"}


def as_json(signal: str, payload: bytes) -> str:
    """A request as OTLP/JSON: protobuf's mapping, enumerations as numbers, ids hexadecimal."""
    request = REQUESTS[signal].FromString(payload)
    return json.dumps(
        _with_ids(json_format.MessageToDict(request, use_integers_for_enums=True)),
        ensure_ascii=len(payload) % 2 == 0,
    )


def _with_ids(value):
    if isinstance(value, list):
        return [_with_ids(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64decode(inner).hex() if key in _IDS else _with_ids(inner)
        for key, inner in value.items()
    }


def post(
    address: str,
    path: str,
    body: str | bytes,
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
    timeout: float = 60,
) -> tuple[int, dict[str, str], bytes]:
    """Sends one request and returns status, headers (lower case) and body of the answer."""
    request = urllib.request.Request(
        f"http://{address}{path}",
        data=body.encode() if isinstance(body, str) else body,
        headers={"Content-Type": content_type, **(headers or {})},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, _lower(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, _lower(error.headers), error.read()


def _lower(headers) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
