"""Sends OTLP/gRPC requests with exact bytes, including malformed ones."""

from __future__ import annotations

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

_SERVICES = "/opentelemetry.proto.collector."
EXPORT = f"{_SERVICES}logs.v1.LogsService/Export"
METHODS = {
    "logs": EXPORT,
    "traces": f"{_SERVICES}trace.v1.TraceService/Export",
    "metrics": f"{_SERVICES}metrics.v1.MetricsService/Export",
}


def channel(address: str) -> grpc.Channel:
    """A separate connection without the client's limits, which are not under test."""
    return grpc.insecure_channel(
        address,
        options=[
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
        ],
    )


def export(address: str, payload: bytes, timeout: float = 60, method: str = EXPORT):
    """Sends one request unchanged; raises grpc.RpcError if it is refused."""
    with channel(address) as connection:
        call = connection.unary_unary(
            method,
            request_serializer=lambda raw: raw,
            response_deserializer=ExportLogsServiceResponse.FromString,
        )
        return call(payload, timeout=timeout, wait_for_ready=True)


def answer(address: str, payload: bytes, signal: str = "logs") -> tuple[str, str]:
    """Sends one request and returns the name of its status code and the message."""
    try:
        export(address, payload, method=METHODS[signal])
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def refusal(address: str, payload: bytes, **options) -> grpc.RpcError:
    """Sends a request that must be refused and returns the refusal (code(), details())."""
    try:
        export(address, payload, **options)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"{address} accepted a request of {len(payload)} bytes it should refuse")
