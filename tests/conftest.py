"""Fixtures: one MinIO and one embedded ClickHouse for the tests that leave them alone, a fresh
buffer and database for every test, and the logs of its processes when it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.services import EmbeddedClickHouse, Minio, Service
from harness.site import Site


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


def _running(service: Service) -> Iterator[Service]:
    service.up()
    yield service
    service.kill()


@pytest.fixture(scope="session")
def shared_minio(shared_directory: Path) -> Iterator[Minio]:
    yield from _running(Minio(shared_directory))


@pytest.fixture(scope="session")
def shared_clickhouse(shared_directory: Path) -> Iterator[EmbeddedClickHouse]:
    yield from _running(EmbeddedClickHouse(shared_directory))


@pytest.fixture
def site(request, tmp_path: Path, shared_minio: Minio, shared_clickhouse: EmbeddedClickHouse):
    """A site on the shared services, which the test must not harm."""
    site = Site(tmp_path, shared_minio, shared_clickhouse)
    request.node.site = site
    yield site
    site.stop()


@pytest.fixture(scope="module")
def module_site(
    request, tmp_path_factory, shared_minio: Minio, shared_clickhouse: EmbeddedClickHouse
):
    """A site that all tests of one file share."""
    site = Site(tmp_path_factory.mktemp("site"), shared_minio, shared_clickhouse)
    request.node.site = site
    yield site
    site.stop()


@pytest.fixture(scope="module")
def new_site(tmp_path_factory, shared_minio: Minio, shared_clickhouse: EmbeddedClickHouse):
    """Creates sites on the shared services that live as long as the tests of one file."""
    sites: list[Site] = []

    def make() -> Site:
        site = Site(tmp_path_factory.mktemp("site"), shared_minio, shared_clickhouse)
        sites.append(site)
        return site

    yield make
    for site in sites:
        site.stop()


@pytest.fixture
def own_site(request, tmp_path: Path):
    """A site with its own store and ClickHouse, which the test may kill. The store is MinIO unless
    the test is parametrized with another."""
    store = getattr(request, "param", Minio)(tmp_path)
    clickhouse = EmbeddedClickHouse(tmp_path)
    site = Site(tmp_path, store, clickhouse)
    request.node.site = site
    try:
        site.add(store).up()
        site.add(clickhouse).up()
        yield site
    finally:
        site.stop()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    site = getattr(item, "site", None) or getattr(item.parent, "site", None)
    if report.failed and site is not None:
        for title, text in site.report():
            report.sections.append((title, text))
