"""A real Ray cluster of several nodes on this machine: nodes that are lost at work, and its head. `make test-ray`.

Starting a node takes seconds, so all tests share one cluster, and each adds the nodes that the one before has killed.
The last test kills the head.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adaptation.adapt_data import scored
from experiments.grid_work import ABOUT, plan_of, quick_cell, task_folder
from safetensors.numpy import load_file

from diffaug import DiffaugError, Embedder, TuneResult, adapt, tune
from diffaug import cluster as cluster_module
from diffaug.adaptation import candidates
from diffaug.adaptation.trials import Fit
from diffaug.cluster import WorkerPool
from diffaug.config import Recipe, change_recipe
from diffaug.evaluation.statistics import Spearman
from diffaug.experiments import executor
from diffaug.experiments.data import TaskFiles
from diffaug.experiments.grid import Grid
from diffaug.experiments.run import GridInterrupted, run_grid
from diffaug.inference.manifest import Manifest
from diffaug.training.loop import Loop, TrainingInterrupted
from diffaug.tuning import worker

ray = pytest.importorskip("ray", reason="needs the extra ray: make test-ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

ROOT = Path(__file__).parents[2]
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
# Ray runs workers with a low priority. On a busy machine they would take minutes to start and to end.
NICENESS = "RAY_worker_niceness"
LOST = "a worker on the Ray cluster was lost"


@pytest.fixture(scope="module")
def whole() -> Iterator[Any]:
    """A head without cores, for the server only."""
    os.environ[NICENESS] = "0"
    head = {**NODE, "num_cpus": 0, "include_dashboard": False, "ray_client_server_port": 24_601}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    os.environ["RAY_ADDRESS"] = cluster.address
    yield cluster
    del os.environ["RAY_ADDRESS"], os.environ[NICENESS]
    cluster.shutdown()


@pytest.fixture
def cluster(whole: Any) -> Any:
    """Two nodes with one core each."""
    while len(whole.worker_nodes) < 2:
        whole.add_node(**NODE)
    whole.wait_for_nodes(120)
    return whole


@pytest.fixture
def lose_a_node(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node of a worker is killed as soon as it begins a piece of work, once another piece has ended."""
    wait = WorkerPool.wait
    begun: list[Any] = []
    ended: list[Any] = []

    def losing(pool: WorkerPool[Any, Any], timeout: float) -> Any:
        found = wait(pool, timeout)
        ended.extend(found)
        busy = [worker for worker in pool._workers if worker.work is not None and worker.place is not None]
        new = [worker for worker in busy if all(worker.work is not work for work in begun)]
        begun.extend(worker.work for worker in new)
        # Classifiers are fitted in milliseconds: here a training is interrupted.
        new = [one for one in new if not isinstance(one.work.item, Fit) or one.work.item.candidate.trains]
        if ended and new and len(cluster.worker_nodes) == 2:
            place, process = new[0].place
            os.kill(process, signal.SIGSTOP)  # otherwise it might finish its work before the node ends
            node = next(node for node in cluster.worker_nodes if node.node_id == place)
            cluster.remove_node(node, allow_graceful=False)
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return found

    monkeypatch.setattr(WorkerPool, "wait", losing)


@pytest.fixture(scope="module")
def embedder(tiny_bert: Path) -> Embedder:
    return Embedder.from_pretrained(tiny_bert, device="cpu")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_text("".join(f"The dog number {i} runs {'far ' * (i % 9)}.\n" for i in range(6_000)))
    return path


def files(folder: Path) -> dict[str, bytes]:
    """All files, also hidden ones, but the manifest, which records shards in the order in which they ended."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "_manifest"}


@pytest.mark.usefixtures("lose_a_node")
def test_an_encode_that_loses_a_node(embedder: Embedder, source: Path, tmp_path: Path) -> None:
    here = embedder.encode_files(source, tmp_path / "here", shard_size=500)
    with pytest.warns(UserWarning, match=LOST):
        result = embedder.encode_files(source, tmp_path / "ray", shard_size=500, engine="ray")
    assert result == here
    assert files(tmp_path / "ray") == files(tmp_path / "here")
    assert len(files(tmp_path / "ray")) == 12
    one, other = (Manifest.load(tmp_path / name / "_manifest") for name in ("here", "ray"))
    assert (one.vectors, one.shards, one.provenance) == (other.vectors, other.shards, other.provenance)
    assert one.provenance is not None


def test_an_encode_through_a_client_is_in_order(
    cluster: Any, embedder: Embedder, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:24601")
    embedder.encode_files(source, tmp_path / "ray.npy", shard_size=500, engine="ray", workers=2)
    embedder.encode_files(source, tmp_path / "here.npy", shard_size=500)
    assert (tmp_path / "ray.npy").read_bytes() == (tmp_path / "here.npy").read_bytes()


def test_a_cluster_that_does_not_answer(
    embedder: Embedder, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(DiffaugError, match=r"the Ray cluster at 127.0.0.1:9 \(RAY_ADDRESS\) does not answer"):
        embedder.encode_files(source, tmp_path / "y", engine="ray")


@pytest.fixture
def plan(tiny_bert: Path, data: Path) -> Any:
    rates = ("0.001", "0.0001", "0.00003")
    changes = [("loop.save_minutes=0.001", f"stage2.learning_rate={rate}", "stage2.steps=6") for rate in rates]
    cells = [quick_cell("Row", tiny_bert, data, *each, setting=i) for i, each in enumerate(changes)]
    return plan_of(cells, (42, 43))


@pytest.fixture
def data(tmp_path: Path, data_files: dict[str, str]) -> Path:
    return task_folder(tmp_path / "data", data_files)


def begin(folder: Path, plan: Any) -> Grid:
    return Grid.begin(folder, {"experiment": plan.spec.name}, ABOUT, plan.cells)


def test_a_grid_that_loses_a_node(
    lose_a_node: None, plan: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_PROCESSES", multiprocessing.get_context("fork"))  # starts sooner
    grids = {name: begin(tmp_path / name, plan) for name in ("here", "ray")}
    assert run_grid(grids["here"], plan, TaskFiles((data,)), quiet=True) == []
    with pytest.warns(UserWarning, match=LOST):
        assert run_grid(grids["ray"], plan, TaskFiles((data,)), engine="ray", quiet=True) == []
    scores = {name: {cell: result.scores for cell, result in grid.results()} for name, grid in grids.items()}
    assert len(scores["here"]) == 4
    assert scores["ray"] == scores["here"]
    for cell in scores["here"]:
        one, other = (load_file(grid.folder_of(cell) / "best" / "diffaug.safetensors") for grid in grids.values())
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_grid_that_is_stopped_goes_on(
    cluster: Any, plan: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = begin(tmp_path / "grid", plan)
    running = threading.Event()

    def stop() -> None:
        while not list(grid.folder.glob("cells/*/metrics.jsonl")):
            time.sleep(0.05)
        os.kill(os.getpid(), 15)
        running.set()

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(GridInterrupted):
        run_grid(grid, plan, TaskFiles((data,)), engine="ray", quiet=True)
    assert running.is_set()
    assert grid.failures() == []
    assert run_grid(grid, plan, TaskFiles((data,)), engine="ray", quiet=True) == []
    assert len(grid.results()) == 4


@pytest.mark.usefixtures("lose_a_node")
def test_an_adapt_that_loses_a_node(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_ON_CPU", ("stage2.batch_size=8", "stage2.steps=6"))
    options: Any = {"folds": 3, "only": ["SimCSE"]}
    lines: list[str] = []
    here = adapt(tiny_bert, scored(), tmp_path / "here", **options)
    with pytest.warns(UserWarning, match=LOST):
        other = adapt(tiny_bert, scored(), tmp_path / "ray", engine="ray", report=lines.append, **options)
    stored = [json.loads((tmp_path / name / "adapt.json").read_text()) for name in ("here", "ray")]
    assert re.sub(r'"seconds": [^,}]*', "", json.dumps(stored[0]["rows"])) == re.sub(
        r'"seconds": [^,}]*', "", json.dumps(stored[1]["rows"])
    )
    assert (other.chosen, other.verdict) == (here.chosen, here.verdict)
    assert sum("fold" in line for line in lines) == 4  # a line for each trained fold, and the first


# Notes the steps of every run; in the third step of stage 2 of the second trial, waits until its node is killed.
TRACED = """
import os
import time
from pathlib import Path

from diffaug.training.loop import Loop

step, reached = Loop._step, Path(__file__).with_name("reached")


def traced(loop, *rest):
    progress, run = loop.progress, loop.context.folder.name
    with Path(__file__).with_name("steps").open("a") as file:
        file.write(f"{run} {os.getpid()} {progress.stage} {progress.step}\\n")
    if (run, progress.stage, progress.step) == ("001", 2, 3) and not reached.exists():
        import ray

        reached.with_suffix(".new").write_text(ray.get_runtime_context().get_node_id())
        reached.with_suffix(".new").rename(reached)
        time.sleep(600)
    return step(loop, *rest)


Loop._step = traced
"""


@pytest.fixture
def tuned(make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe whose trials take some seconds, with a plugin in `tmp_path`."""
    for owner, name in ((Loop, "_step"), (worker, "train")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # a plugin replaces it in this process, too
    loop = {"save_minutes": 0.0001, "eval_every": 2}
    recipe = make_recipe(data={"test": None}, stage1={"steps": 2}, stage2={"steps": 6}, loop=loop)
    return replace(recipe, plugins=[str(tmp_path / "plugin.py")])


def trials(result: TuneResult) -> list[tuple[Any, ...]]:
    """All but the durations."""
    return [(trial.name, trial.changes, trial.score, trial.end) for trial in result.trials]


def test_a_tune_that_loses_a_node(cluster: Any, tuned: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin.py").write_text(TRACED)
    search, reached, wait = (
        {"stage2.learning_rate": [0.0003, 0.001, 0.003, 0.01]},
        tmp_path / "reached",
        WorkerPool.wait,
    )
    reached.touch()
    here = tune(tuned, search, tmp_path / "here")
    reached.unlink()

    def losing(pool: WorkerPool[Any, Any], timeout: float) -> Any:
        if reached.exists() and (lost := [n for n in cluster.worker_nodes if n.node_id == reached.read_text()]):
            cluster.remove_node(lost[0], allow_graceful=False)
        return wait(pool, timeout)

    monkeypatch.setattr(WorkerPool, "wait", losing)
    lines: list[str] = []
    with pytest.warns(UserWarning, match=LOST):
        result = tune(tuned, search, tmp_path / "ray", engine="ray", report=lines.append)
    assert trials(result) == trials(here)
    assert (result.score, result.verdict) == (here.score, here.verdict)
    assert sum("(stage2.learning_rate=" in line for line in lines) == 4  # besides those of each minute
    assert (tmp_path / "ray" / "best.yaml").read_text() == (tmp_path / "here" / "best.yaml").read_text()
    one, other = (load_file(found.model / "diffaug.safetensors") for found in (here, result))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    # The trial whose worker was lost went on from its checkpoint in another process.
    steps = [line.split() for line in (tmp_path / "steps").read_text().splitlines()]
    by_process: dict[str, list[tuple[str, str]]] = {}
    for run, process, stage, step in steps:
        if run == "001":
            by_process.setdefault(process, []).append((stage, step))
    _, first, second = by_process.values()
    assert first[-1] == second[0] == ("2", "3")


# Trials that are not finished before they are stopped.
SLOW = """
import os
import time

from diffaug.training.loop import Loop

step = Loop._step


def slow(loop, *rest):
    if loop.context.folder.parent.name == "trials":
        time.sleep(float(os.environ["DIFFAUG_SLOW"]))
    return step(loop, *rest)


Loop._step = slow
"""


def test_a_tune_that_is_stopped_goes_on(
    cluster: Any, tuned: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin.py").write_text(SLOW)
    monkeypatch.setenv("DIFFAUG_SLOW", "0.1")
    search = {"stage2.learning_rate": [0.0003, 0.001, 0.003]}
    recipe = change_recipe(tuned, ["stage2.steps=300", "loop.eval_every=150", "loop.save_minutes=10"])
    out, stopping = tmp_path / "out", threading.Event()

    def stop() -> None:
        while not list(out.glob("trials/*/progress.json")):
            time.sleep(0.05)
        os.kill(os.getpid(), 15)
        stopping.set()

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(TrainingInterrupted):
        tune(recipe, search, out, engine="ray")
    assert stopping.is_set()
    assert list(out.glob("trials/*/checkpoints/*"))
    assert [path for path in out.glob(".trial-*.lock") if "worker" not in path.name] == []
    # It goes on without the cluster, too.
    monkeypatch.setenv("DIFFAUG_SLOW", "0")
    assert [trial.end for trial in tune(recipe, search, out).trials] == ["complete"] * 4


# Made-up scores: the lower the learning rate, the better. One kills its process.
MADE_UP = """
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

from diffaug.tuning import worker


def train(recipe, folder, *, callbacks, **_):
    rate = recipe.stage2.learning_rate
    if rate > 0.8:
        os.kill(os.getpid(), signal.SIGKILL)
    score, stage = -rate, SimpleNamespace(number=2, steps=20)
    for step in range(2, 21, 2):
        progress = SimpleNamespace(step=step, best={"selection": score})
        for callback in callbacks:
            callback.on_evaluate_end(SimpleNamespace(stages=[stage], progress=progress), stage, last=step == 20)
    (folder / "best").mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"scores": {"dev": score}, "seconds": 1}))


worker.train = train
"""


def test_trials_on_a_cluster_are_pruned_or_given_up(
    cluster: Any, tuned: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin.py").write_text(MADE_UP)
    monkeypatch.setattr("diffaug.tuning.run._score", lambda model, pairs: Spearman(np.arange(9.0), np.arange(9.0)))
    search = {"stage2.learning_rate": [0.9, *(n / 20 for n in range(1, 9))]}
    with pytest.warns(UserWarning, match=LOST):
        result = tune(change_recipe(tuned, ["stage2.learning_rate=0.5"]), search, tmp_path / "out", engine="ray")
    ends = [trial.end for trial in result.trials]
    assert ends[:7] == ["complete", "failed", *["complete"] * 5]
    assert ends[-1] == "pruned"
    assert "the worker on the Ray cluster was lost 3 times" in str(result.trials[1].failure)
    assert result.changes == ["stage2.learning_rate=0.05"]
    assert sorted(path.parent.name for path in (tmp_path / "out").glob("trials/*/best")) == ["001"]


def documented_training() -> str:
    """The example of docs/cluster.md."""
    (found,) = re.findall(r"```python\n(.*?TorchTrainer.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL)
    return str(found)


WAITING = """
import time
from pathlib import Path

from diffaug.training.loop import Loop

step, reached = Loop._step, Path(__file__).with_name("reached")


def waiting(loop, *rest):
    if (loop.progress.stage, loop.progress.step) == (2, 10) and not reached.exists():
        reached.touch()
        time.sleep(600)  # until its node or its group of processes is killed
    return step(loop, *rest)


Loop._step = waiting
"""


def test_training_that_loses_a_node(
    cluster: Any, make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented example, on two nodes, ends with the weights of `torchrun` with two processes."""
    recipe = make_recipe("sup", loop={"save_minutes": 1e-9}, stage1={"steps": 4}, stage2={"steps": 30})
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "diffaug"]
    arguments = ["train", "--recipe", str(path), "--out", "torchrun", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr

    (tmp_path / "waiting.py").write_text(WAITING)
    example = documented_training().replace('"quickstart"', repr(str(path))).replace("num_workers=4", "num_workers=2")
    example = example.replace("use_gpu=True", "use_gpu=False").replace("import diffaug\n", "import diffaug, waiting\n")
    script, log, reached = tmp_path / "script.py", tmp_path / "log", tmp_path / "reached"
    script.write_text(example)
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, str(script)], stdout=output, stderr=output, env=environment)
        while not reached.exists():
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.1)
        assert list(Path("runs/cluster/checkpoints").iterdir())
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        cluster.add_node(**NODE)
        assert process.wait(600) == 0, log.read_text()[-3000:]
    one, other = (load_file(Path(run) / "best" / "diffaug.safetensors") for run in ("torchrun", "runs/cluster"))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert Path("torchrun/metrics.jsonl").read_text() == Path("runs/cluster/metrics.jsonl").read_text()


def test_an_encode_whose_cluster_loses_its_head(
    cluster: Any, embedder: Embedder, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, calls = Manifest.add, []

    def kill_head(manifest: Manifest, shard: Any) -> None:
        add(manifest, shard)
        calls.append(shard)
        if len(calls) == 2:
            cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
            time.sleep(2)  # longer than the patience: the workers could finish without the head

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "add", kill_head)
        patch.setattr(cluster_module, "_LOOK", 0.2)
        patch.setattr(cluster_module, "_PATIENCE", 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(DiffaugError, match=r"has lost its head node .* the same command continues"):
                embedder.encode_files(source, tmp_path / "out", shard_size=500, engine="ray")
    assert not ray.is_initialized()
    result = embedder.encode_files(source, tmp_path / "out", shard_size=500)
    assert result.continued >= 1_000
    embedder.encode_files(source, tmp_path / "here", shard_size=500)
    assert files(tmp_path / "out") == files(tmp_path / "here")
