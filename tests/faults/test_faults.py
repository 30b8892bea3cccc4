"""Runs that are killed, have no space left, or find damaged files: they resume, and end with the same bits.

`make test-faults` runs this for some minutes; `make test` leaves it out.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from diffaug.config import Recipe
from diffaug.errors import DiffaugError
from diffaug.training.checkpoint import checkpoints
from diffaug.training.run import train

KILLS = int(os.environ.get("DIFFAUG_KILLS", "100"))
FULL_DISKS = 40
# Exit codes of a child whose training ended with a `DiffaugError`, or with anything else.
CLEAN, TRACEBACK = 3, 7
fork = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def recipe(make_recipe: Callable[..., Recipe]) -> Recipe:
    """Both stages with dropout; a checkpoint is written after every step."""
    loop = {"eval_every": 3, "save_minutes": 0.0}
    return make_recipe("semi-aux", loop=loop, stage1={"steps": 8}, stage2={"steps": 8})


@pytest.fixture(scope="module")
def reference(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    train(recipe, folder, quiet=True)
    return folder


class Child:
    """A process that trains, and what it said if it failed."""

    def __init__(self, recipe: Recipe, folder: Path, limit: int | None = None) -> None:
        self._reader, writer = fork.Pipe(duplex=False)

        def work() -> None:
            try:
                if limit is not None:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                train(recipe, folder, resume=True, quiet=True)
                os._exit(0)
            except DiffaugError as error:
                writer.send(str(error))
                os._exit(CLEAN)
            except BaseException:
                writer.send(traceback.format_exc())
                os._exit(TRACEBACK)

        self.process = fork.Process(target=work)
        self.process.start()
        writer.close()

    def end(self) -> tuple[int, str]:
        self.process.join()
        assert self.process.exitcode is not None
        try:
            return self.process.exitcode, self._reader.recv()
        except EOFError:
            return self.process.exitcode, ""


def assert_same(folder: Path, reference: Path) -> None:
    found, expected = (load_file(run / "best" / "diffaug.safetensors") for run in (folder, reference))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)
    assert (folder / "metrics.jsonl").read_text() == (reference / "metrics.jsonl").read_text()
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in reference.iterdir())


def moment(folder: Path) -> str:
    """The stage that a run was in when it was killed."""
    found = checkpoints(folder / "checkpoints")
    return found[-1].name.partition("-")[0] if found else "before the first checkpoint"


def test_killed_at_random_moments(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    rng, start = random.Random(0), time.monotonic()
    whole = json.loads((reference / "summary.json").read_text())["seconds"]
    moments: Counter[str] = Counter()
    runs = 0
    while moments.total() < KILLS:
        folder = tmp_path / f"run{runs}"
        while not (folder / "summary.json").exists():
            child = Child(recipe, folder)
            time.sleep(rng.uniform(0.02, 0.5) * whole)
            child.process.kill()
            code, said = child.end()
            assert code in (0, -signal.SIGKILL), said
            if code == -signal.SIGKILL and not (folder / "summary.json").exists():
                moments[moment(folder)] += 1
        if (folder / "checkpoints").exists():  # killed after the summary and before the last clean-up
            shutil.rmtree(folder / "checkpoints")
        assert_same(folder, reference)
        shutil.rmtree(folder)
        runs += 1
    seconds = time.monotonic() - start
    print(f"\nkills survived: {moments.total()} of {moments.total()} in {runs} runs, {dict(moments)}; {seconds:.0f} s")
    assert {"stage1", "stage2"} <= moments.keys()


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of so many bytes."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Use all space that is left."""
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass


def test_the_disk_fills_up_at_random_moments(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    """Whichever write fails first, the error says so, and the run resumes when there is space."""
    rng, errors, start = random.Random(0), Counter[str](), time.monotonic()
    whole = json.loads((reference / "summary.json").read_text())["seconds"]
    runs = 0
    with small_disk(tmp_path / "disk", 32 << 20) as disk:
        while errors.total() < FULL_DISKS:
            folder = disk / f"run{runs}"
            while not (folder / "summary.json").exists():
                child = Child(recipe, folder)
                child.process.join(rng.uniform(0.02, 0.6) * whole)
                while child.process.is_alive():
                    fill(disk / "filler")
                    child.process.join(0.01)
                code, said = child.end()
                (disk / "filler").unlink(missing_ok=True)
                if code:
                    assert code == CLEAN, said
                    assert "cannot be written: no space left on the disk; free some space" in said
                    errors[re.sub(r"step\d+", "", Path(said.partition(" cannot be written")[0]).name)] += 1
            assert_same(folder, reference)
            shutil.rmtree(folder)
            runs += 1
    print(
        f"\nfull disk: {errors.total()} clean errors in {runs} runs, {dict(errors)}; {time.monotonic() - start:.0f} s"
    )
    assert len(errors) > 2, "vacuous: always the same write"


def test_every_size_of_file_fails_once(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    """The system refuses files above a size: each kind of file in turn cannot be written."""
    errors: Counter[str] = Counter()
    sizes = sorted({path.stat().st_size for path in reference.rglob("*") if path.is_file()})
    for number, size in enumerate(sizes):
        folder = tmp_path / f"run{number}"
        code, said = Child(recipe, folder, limit=size - 1).end()
        assert code == CLEAN, said
        assert "cannot be written" in said
        errors[Path(said.partition(" cannot be written")[0]).name] += 1
        code, said = Child(recipe, folder).end()
        assert code == 0, said
        assert_same(folder, reference)
    print(f"\nrefused writes: {errors.total()}, {dict(errors)}")


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file in one of several ways."""
    content = bytearray(path.read_bytes())
    kind = rng.choice(["bit", "bit", "bit", "cut", "gone", "empty"])
    if kind == "bit":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        content = content[: rng.randrange(len(content))]
    elif kind == "empty":
        content = bytearray()
    path.write_bytes(content)
    if kind == "gone":
        path.unlink()
    return kind


def test_damaged_and_missing_checkpoint_files(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    rng, kinds = random.Random(0), Counter[str]()
    start = time.monotonic()
    stopped = tmp_path / "stopped"
    child = Child(recipe, stopped)
    while moment(stopped) != "stage2" or len(checkpoints(stopped / "checkpoints")) < 2:
        time.sleep(0.01)
    child.process.kill()
    child.end()
    for older in checkpoints(stopped / "checkpoints")[:-2]:  # it was killed before it removed this one
        shutil.rmtree(older)
    for number in range(32):
        folder = shutil.copytree(stopped, tmp_path / f"run{number}")
        older, newer = checkpoints(folder / "checkpoints")
        kinds[damage(rng.choice(sorted(newer.iterdir())), rng)] += 1
        both = number % 4 == 0
        if both:
            kinds[damage(rng.choice(sorted(older.iterdir())), rng)] += 1
        code, said = Child(recipe, folder).end()
        if both:
            assert code == CLEAN, said
            assert "no checkpoint is left to resume from" in said
        else:
            assert code == 0, said
            assert_same(folder, reference)
        shutil.rmtree(folder)
    print(
        f"\ndamaged files detected: {kinds.total()} of {kinds.total()}, {dict(kinds)}; {time.monotonic() - start:.0f} s"
    )


def test_two_processes_in_one_folder(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / f"run{number}"
        ends: list[tuple[int, Any]] = [child.end() for child in [Child(recipe, folder) for _ in range(2)]]
        assert sorted(code for code, _ in ends) == [0, CLEAN], ends
        assert any("another process is at work" in said or "is finished" in said for _, said in ends)
        assert_same(folder, reference)
