"""`--engine ray` without a cluster: what a user is told, and how workers share it. `make test-ray` has a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from diffaug import DiffaugError, Embedder, adapt
from diffaug.cli import app
from diffaug.cluster import WorkerPool, _shares


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("nodes", "size", "expected"),
    [
        # GPUs: one per worker, or equal parts of one; cores do not matter.
        ([{"GPU": 4, "CPU": 8}, {"GPU": 4, "CPU": 8}], None, (8, {"num_cpus": 0, "num_gpus": 1.0})),
        ([{"GPU": 4, "CPU": 8}, {"CPU": 8}], 3, (3, {"num_cpus": 0, "num_gpus": 1.0})),
        ([{"GPU": 2}, {"GPU": 2}], 16, (16, {"num_cpus": 0, "num_gpus": 0.25})),
        ([{"GPU": 2}, {"GPU": 2}], 5, (5, {"num_cpus": 0, "num_gpus": 0.5})),
        # Cores: as many as fit, and a worker is on one node.
        ([{"CPU": 4}, {"CPU": 2}], None, (6, {"num_cpus": 1})),
        ([{"CPU": 4}, {"CPU": 4}], 2, (2, {"num_cpus": 4})),
        ([{"CPU": 4}, {"CPU": 4}], 3, (3, {"num_cpus": 2})),
        ([{"CPU": 4}, {"CPU": 1}], 2, (2, {"num_cpus": 2})),
        # More than there are wait for new nodes.
        ([{"CPU": 2}], 8, (8, {"num_cpus": 1})),
        ([{}, {"CPU": 1}], None, (1, {"num_cpus": 1})),
    ],
)
def test_shares(nodes: Any, size: int | None, expected: Any) -> None:
    assert _shares(nodes, size) == expected


def test_a_cluster_without_cores_is_refused() -> None:
    with pytest.raises(DiffaugError, match="no cores and no GPUs"):
        _shares([{"memory": 1.0}], None)


def test_ray_is_not_installed(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "a.txt").write_text("A dog.\n")
    embedder = Embedder.from_pretrained(tiny_bert)
    with pytest.raises(DiffaugError, match=r"the engine ray needs the package ray: pip install 'diffaug\[ray\]'"):
        embedder.encode_files(tmp_path / "a.txt", tmp_path / "out.npy", engine="ray")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(DiffaugError, match="needs the package ray"):
        WorkerPool(dict)
    with pytest.raises(DiffaugError, match="engine must be one of local, ray, got 'dask'"):
        embedder.encode_files(tmp_path / "a.txt", tmp_path / "out", engine="dask")  # type: ignore[arg-type]
    with pytest.raises(DiffaugError, match="engine must be one of local, ray"):
        adapt(tiny_bert, [], tmp_path / "out", engine="dask")  # type: ignore[arg-type]
    with pytest.raises(DiffaugError, match="devices do not apply to the engine ray"):
        embedder.encode_files(tmp_path / "a.txt", tmp_path / "out", engine="ray", devices=["cpu"])
    command = ["encode", str(tmp_path / "a.txt"), "-o", str(tmp_path / "out"), "--engine"]
    assert "--device and --devices do not apply" in str(run(*command, "ray", "--device", "cpu").exception)
    assert "needs the package ray" in str(run(*command, "ray", "-m", str(tiny_bert)).exception)
    assert run(*command, "dask").exit_code == 2
