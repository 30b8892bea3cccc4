"""Folders with made-up data of the public tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up import sts_spec, write_tsv
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True)
def _one_blas_thread() -> Iterator[None]:
    """For matrices this small, threads cost far more than they bring."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def sts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """STS12, STS13 and STS-B (dev and test) as TSV files."""
    folder = tmp_path_factory.mktemp("sts")
    for name in ("STS12", "STS13", "STS-B", "STS-B-dev"):
        write_tsv(folder, sts_spec(name))
    return folder
