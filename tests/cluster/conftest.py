"""Fixtures: clusters that live as long as the tests of one file, and pipelines that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.pipeline import Pipeline
from cluster.servers import Cluster
from harness.services import Minio


@pytest.fixture(scope="module")
def new_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters that end with the file's last test."""
    clusters: list[Cluster] = []

    def make(**options: object) -> Cluster:
        cluster = Cluster(tmp_path_factory.mktemp("cluster"), **options)
        clusters.append(cluster)
        return cluster.up()

    yield make
    for cluster in clusters:
        cluster.stop()


@pytest.fixture
def new_pipeline(request, tmp_path: Path, shared_minio: Minio) -> Iterator[Callable[..., Pipeline]]:
    """Creates the pipeline of one test on a running cluster."""
    made: list[Pipeline] = []

    def make(cluster: Cluster, **options: object) -> Pipeline:
        pipeline = Pipeline(tmp_path, shared_minio, cluster, **options)
        request.node.site = pipeline
        made.append(pipeline)
        return pipeline

    yield make
    for pipeline in made:
        pipeline.stop()
        pipeline.cluster.recover()
