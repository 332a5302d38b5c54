"""A private CA in SSL_CERT_DIR, as the chart sets it: the store, ClickHouse and the OTLP endpoint
may have certificates of it."""

from __future__ import annotations

import http.server
import ssl
import threading
import urllib.error
import urllib.request

import pytest

from harness.corpus import record, request
from harness.otlp import export
from harness.pki import Authority
from harness.process import Process, eventually
from harness.services import CREDENTIALS, Buffer, Minio, program


class SecureMinio(Minio):
    """MinIO with a certificate of the authority."""

    def __init__(self, directory, authority: Authority) -> None:
        super().__init__(directory, name="secure-minio")
        folder = directory / "minio-certificates"
        folder.mkdir()
        certificate, key = authority.issue("minio")
        (folder / "public.crt").write_bytes(certificate.read_bytes())
        (folder / "private.key").write_bytes(key.read_bytes())
        self.argv += ["--certs-dir", str(folder)]
        self.trusting = ssl.create_default_context(cafile=str(authority.file))
        self.endpoint = self.endpoint.replace("http://", "https://")

    def ready(self) -> bool:
        url = f"{self.endpoint}/minio/health/cluster"
        with urllib.request.urlopen(url, timeout=5, context=self.trusting) as answer:
            return answer.status == 200


class Front(http.server.ThreadingHTTPServer):
    """HTTPS in front of a server, on a free port. Without a server it accepts what is pushed."""

    daemon_threads = True

    def __init__(self, authority: Authority, name: str, behind: str | None = None) -> None:
        self.behind, self.paths = behind, set()
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue(name))
        self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, _request, _address) -> None:
        """A client that does not trust it hangs up."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_POST(self) -> None:
        body = self._body()
        self.server.paths.add(self.path.split("?")[0])
        status, answer, headers = 200, b"", {}
        if self.server.behind:
            url = self.server.behind + self.path
            status, answer, headers = _post(url, body, self.headers)
        self.send_response(status)
        for name, value in headers.items():
            if name.lower().startswith("x-clickhouse"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def _post(url: str, body: bytes, headers):
    kept = {name: value for name, value in headers.items() if name.lower().startswith("x-")}
    asked = urllib.request.Request(url, data=body, headers=kept)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


@pytest.fixture
def trusted(tmp_path):
    """The authority, and the variables with which a process trusts it. The folder is like that of a
    mounted Secret: a link to a file in a folder behind a link."""
    authority = Authority(tmp_path, "company")
    version = tmp_path / "ca" / "..2026_11_22"
    version.mkdir(parents=True)
    (version / "ca.crt").write_bytes(authority.file.read_bytes())
    (tmp_path / "ca" / "..data").symlink_to(version.name)
    (tmp_path / "ca" / "ca.crt").symlink_to("..data/ca.crt")
    # The public CAs of the image; here those of another authority.
    public = Authority(tmp_path, "public")
    variables = {"SSL_CERT_FILE": str(public.file), "SSL_CERT_DIR": str(tmp_path / "ca")}
    return authority, variables


def test_all_that_it_connects_to_may_have_a_certificate_of_a_private_ca(site, trusted, tmp_path):
    authority, variables = trusted
    store = site.add(SecureMinio(tmp_path, authority))
    store.up()
    clickhouse = Front(authority, "clickhouse", site.clickhouse.url)
    collector = Front(authority, "collector")
    site.buffer = Buffer("s3://private-ca/buffer", store.endpoint)
    site.clickhouse_url = clickhouse.url
    pushing = ("--otlp-endpoint", collector.url, "--otlp-interval", "1s")
    gateway = site.gateway_of(*pushing)
    consumer = site.consumer_of(*pushing)
    for process in (gateway, consumer):
        process.environment |= variables
        process.up()
    export(gateway.address, request(record("one", body="one")).SerializeToString())
    rows = f"SELECT count() FROM {site.database}.otel_logs"
    eventually("the row", lambda: site.clickhouse.scalar(rows) == "1")
    eventually("metrics", lambda: "/v1/metrics" in collector.paths)
    assert [consumer.terminate(), gateway.terminate()] == [0, 0]


def test_a_certificate_of_an_unknown_ca_is_refused(site, trusted, tmp_path):
    authority, _ = trusted
    store = site.add(SecureMinio(tmp_path, authority))
    store.up()
    buffer = Buffer("s3://private-ca/buffer", store.endpoint)
    gateway = site.add(
        Process(
            "untrusting",
            [program("millpond"), "status", *buffer.flags],
            tmp_path,
            {**CREDENTIALS, "SSL_CERT_FILE": str(tmp_path / "public" / "ca.pem")},
        )
    )
    gateway.start()
    assert gateway.wait(120) != 0
    assert "certificate" in gateway.messages().lower()
