"""Nothing is lost: whatever moment a run is killed at, the resumed run ends with the same bits."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate import Accelerator
from safetensors.torch import load_file, save_file

from diffaug import files
from diffaug.config import Recipe
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.training.checkpoint import Checkpoint, checkpoints, last_checkpoint
from diffaug.training.loop import Loop, TrainingInterrupted
from diffaug.training.run import train

# Children inherit the imported libraries, so that a run takes a second and not ten.
fork = multiprocessing.get_context("fork")


def in_child(work: Callable[[], Any]) -> multiprocessing.process.BaseProcess:
    def guarded() -> None:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(7)
        os._exit(0)

    child = fork.Process(target=guarded)
    child.start()
    return child


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "best" / "diffaug.safetensors")


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_result(folder: Path, reference: Path) -> None:
    found, expected = weights(folder), weights(reference)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].equal(expected[name]), name
    assert metrics(folder) == metrics(reference)
    assert not list(folder.glob(".*"))
    assert not (folder / "checkpoints").exists()


@pytest.fixture(scope="module")
def recipe(make_recipe: Callable[..., Recipe]) -> Recipe:
    # Dropout is on, and a checkpoint is written after every step.
    return make_recipe(
        "semi-aux", loop={"eval_every": 2, "save_minutes": 0.0}, stage1={"steps": 5}, stage2={"steps": 5}
    )


@pytest.fixture(scope="module")
def reference(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed, not to be changed."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    train(recipe, folder, quiet=True)
    return folder


def train_and_die(recipe: Recipe, folder: Path, at: int) -> None:
    """For a child: train, and be gone before the flush to disk or rename of that number."""
    left = at

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def act_or_die(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*arguments, **named)

        return act_or_die

    for name in ("fsync", "rename", "replace"):
        setattr(os, name, counted(getattr(os, name)))
    train(recipe, folder, resume=True, quiet=True)


def test_killed_at_every_kind_of_write(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    rng = random.Random(0)
    kills = 0
    for attempt in range(40):
        # Early deaths first; the end of a run takes more writes in a row than those would ever let through.
        at = rng.randrange(1, 20) if attempt < 6 else rng.randrange(30, 140)
        child = in_child(lambda at=at: train_and_die(recipe, folder, at))
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        kills += 1
    else:
        pytest.fail("the run never ended")
    assert kills > 5, "vacuous: the run was hardly disturbed"
    assert_same_result(folder, reference)


def test_killed_while_the_best_model_gets_its_last_scores(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    """Between two renames there is no best model, and steps that are not taken again would not bring it back."""
    folder = tmp_path / "killed"

    def run() -> None:
        files._exchange = lambda one, other: False  # as on systems that cannot exchange two folders
        rename = os.rename

        def die(source: Any, target: Any) -> None:
            described = Path(source) / "diffaug.json"
            if Path(target) == folder / "best" and "test" in json.loads(described.read_text("utf-8"))["scores"]:
                os.kill(os.getpid(), signal.SIGKILL)
            rename(source, target)

        os.rename = die
        train(recipe, folder, quiet=True)

    child = in_child(run)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not (folder / "best").exists()
    train(recipe, folder, resume=True, quiet=True)
    assert_same_result(folder, reference)


def test_killed_at_random_moments(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    rng = random.Random(1)
    whole = json.loads((reference / "summary.json").read_text())["seconds"]
    kills = 0
    while kills < 6:  # 100 in tests/faults
        child = in_child(lambda: train(recipe, folder, resume=True, quiet=True))
        time.sleep(rng.uniform(0.1, 0.6) * whole)
        child.kill()
        child.join()
        finished = (folder / "summary.json").exists()  # then it may have been killed on its way out
        if child.exitcode == -signal.SIGKILL and not finished:
            kills += 1
            continue
        assert finished
        if kills > 1:
            break
        # It was hardly disturbed, since it took far less time than the reference did: once more, and sooner.
        shutil.rmtree(folder)
        whole, kills = whole / 2, 0
    if not (folder / "summary.json").exists():
        train(recipe, folder, resume=True, quiet=True)
    assert_same_result(folder, reference)


def test_processes_leave_together_when_the_state_is_written(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one left while the main one still writes, whoever launched them would end the main one."""
    folder, step = tmp_path / "stopped", Loop._step
    saved: list[list[str]] = []

    def stopped(self: Loop, *args: Any) -> Any:
        if (self.progress.stage, self.progress.step) == (2, 2):
            self._stop.signal = signal.SIGTERM
        return step(self, *args)

    def wait(_: Accelerator) -> None:
        saved.append([path.name for path in checkpoints(folder / "checkpoints")])

    monkeypatch.setattr(Loop, "_step", stopped)
    monkeypatch.setattr(Accelerator, "wait_for_everyone", wait)
    with pytest.raises(TrainingInterrupted):
        train(recipe, folder, quiet=True)
    assert saved[-1] == ["stage2-step0000002", "stage2-step0000003"]


def test_processes_have_read_the_best_model_before_it_is_replaced(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    load, save = Embedder.from_pretrained, Embedder.save

    def loaded(source: Any, **named: Any) -> Embedder:
        events.append(f"load {Path(source).name}")
        return load(source, **named)

    def saved(self: Embedder, *arguments: Any, **named: Any) -> None:
        events.append("save")
        save(self, *arguments, **named)

    monkeypatch.setattr(Embedder, "from_pretrained", loaded)
    monkeypatch.setattr(Embedder, "save", saved)
    monkeypatch.setattr(Accelerator, "wait_for_everyone", lambda _: events.append("wait"))
    train(recipe, tmp_path / "run", quiet=True)
    first = events.index("load best")
    assert events[first : first + 2] == ["load best", "wait"]
    assert events[-2:] == ["save", "wait"]


def test_one_process_at_a_time(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    """A second run into the folder is refused while the first is at work, new or resumed, and does it no harm."""
    folder = tmp_path / "one"
    step = Loop._step
    said: list[str] = []

    def disturbed(self: Loop, *args: Any) -> Any:
        if not said or (self.progress.stage, self.progress.step) == (2, 1):
            (folder / ".being.diffaug-0a1b2c3d").touch()
            for resume in (False, True):
                with pytest.raises(DiffaugError) as refused:
                    train(recipe, folder, resume=resume, quiet=True)
                said.append(str(refused.value))
            (folder / ".being.diffaug-0a1b2c3d").unlink()
        return step(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_step", disturbed)
        train(recipe, folder, quiet=True)
    assert len(said) == 4
    assert "is not empty; choose another folder" in said[0]
    assert all(f"another process is at work in {folder}" in words for words in said[1::2])
    assert_same_result(folder, reference)


def test_of_two_that_begin_together_one_is_refused(
    recipe: Recipe, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find the folder free; one begins, or even ends, before the other gets any further."""
    from diffaug.training import preflight

    folder, exclusive_lock = tmp_path / "one", preflight.exclusive_lock
    outcomes: list[Any] = []

    def late(*arguments: Any) -> Any:
        if not outcomes:
            outcomes.append(None)
            outcomes.append(train(recipe, folder, quiet=True))
        return exclusive_lock(*arguments)

    monkeypatch.setattr(preflight, "exclusive_lock", late)
    with pytest.raises(DiffaugError, match="is not empty; choose another folder"):
        train(recipe, folder, quiet=True)
    assert outcomes[1].model == folder / "best"
    assert_same_result(folder, reference)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves(recipe: Recipe, reference: Path, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "stopped"
    calm = Recipe(**{**recipe.__dict__, "loop": type(recipe.loop)(eval_every=2, save_minutes=60.0)})

    def run() -> None:
        step = Loop._step

        def signalled(self: Loop, *args: Any) -> Any:
            if self.progress.stage == 2 and self.progress.step == 2:
                os.kill(os.getpid(), number)
            return step(self, *args)

        Loop._step = signalled  # type: ignore[method-assign]
        try:
            train(calm, folder, quiet=True)
        except TrainingInterrupted as interrupted:
            os._exit(100 + interrupted.signal)

    child = in_child(run)
    child.join()
    assert child.exitcode == 100 + number
    (saved,) = checkpoints(folder / "checkpoints")
    assert saved.name == "stage2-step0000003"
    train(calm, folder, resume=True, quiet=True)
    found, expected = weights(folder), weights(reference)
    assert all(found[name].equal(expected[name]) for name in expected)


def test_a_full_disk_is_one_clear_error_and_keeps_the_last_checkpoint(
    recipe: Recipe, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import diffaug.training.checkpoint as module

    folder = tmp_path / "full"
    save_file = module.save_file
    calls = []

    def fills_up(*args: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        save_file(*args)

    monkeypatch.setattr(module, "save_file", fills_up)
    with pytest.raises(DiffaugError, match=r"stage1-step0000003 cannot be written: no space left on the disk"):
        train(recipe, folder, quiet=True)
    assert [path.name for path in checkpoints(folder / "checkpoints")] == [
        "stage1-step0000001",
        "stage1-step0000002",
    ]
    monkeypatch.undo()
    train(recipe, folder, resume=True, quiet=True)
    assert_same_result(folder, reference)


def test_resume_with_other_settings_or_twice_is_refused(
    recipe: Recipe, reference: Path, make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    folder = shutil.copytree(reference, tmp_path / "copy")
    with pytest.raises(DiffaugError, match="is not empty; choose another folder"):
        train(recipe, folder, quiet=True)
    with pytest.raises(DiffaugError, match="is finished"):
        train(recipe, folder, resume=True, quiet=True)
    (folder / "summary.json").unlink()
    with pytest.raises(DiffaugError, match=r"another recipe .*stage1.steps was 5, is 4"):
        train(make_recipe("semi-aux", stage2={"steps": 5}), folder, resume=True, quiet=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(DiffaugError, match="not a run's folder"):
        train(recipe, tmp_path / "other", resume=True, quiet=True)
    with pytest.raises(DiffaugError, match="is a file"):
        train(recipe, tmp_path / "other" / "thesis.tex", quiet=True)
    with pytest.raises(DiffaugError, match="cannot be written"):
        train(recipe, tmp_path / "other" / "thesis.tex" / "run", quiet=True)


def unfinished(recipe: Recipe, folder: Path, **left_out: list[str]) -> None:
    """A run's folder with this recipe, as another version has written it: without some settings of some groups."""
    values = recipe.to_dict()
    for group, keys in left_out.items():
        values[group] = {key: value for key, value in values[group].items() if key not in keys}
    folder.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values), "utf-8")


def test_a_run_that_is_older_than_a_setting_goes_on(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    """What is left out means its default, as it would in a recipe of today."""
    folder = tmp_path / "older"
    unfinished(recipe, folder, loop=["fast", "clip"], views=["scale"])
    train(recipe, folder, resume=True, quiet=True)
    assert_same_result(folder, reference)
    assert yaml.safe_load((folder / "recipe.yaml").read_text("utf-8")) == recipe.to_dict()


def test_a_left_out_setting_is_not_any_value(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    unfinished(make_recipe(), tmp_path / "run", loop=["clip"])
    with pytest.raises(DiffaugError, match=r"loop\.clip was 1\.0, is 0\.5"):
        train(make_recipe(loop={"clip": 0.5}), tmp_path / "run", resume=True, quiet=True)


@pytest.mark.parametrize("text", ["name: [", "name: a\nmethod: diffaug\nforgotten: 1\n", "just words"])
def test_a_recipe_that_is_none_any_more_is_a_clear_error(
    text: str, make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(text, "utf-8")
    with pytest.raises(DiffaugError, match=r"cannot continue, because its recipe is no longer valid \(.*recipe\.yaml"):
        train(make_recipe(), tmp_path, resume=True, quiet=True)


def test_a_damaged_checkpoint_is_a_clear_error(tmp_path: Path) -> None:
    folder = tmp_path / "stage1-step0000001"
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    (folder / "state.safetensors").write_bytes(b"abc")
    with pytest.raises(DiffaugError, match="is damaged"):
        Checkpoint(folder)


def test_hidden_files_of_the_user_stay(recipe: Recipe, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("all of my work")
    train(recipe, folder, quiet=True)
    assert (folder / ".git" / "HEAD").read_text() == "all of my work"


def test_what_a_cut_off_first_write_leaves_is_no_obstacle(recipe: Recipe, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    folder.mkdir()
    (folder / ".recipe.diffaug-0a1b2c3d.yaml").write_text("half")
    train(recipe, folder, resume=True, quiet=True)
    assert_same_result(folder, reference)


def interrupt(recipe: Recipe, folder: Path, stage: int = 2, step: int = 3) -> None:
    """Train up to a step; checkpoints of it and of the step before stay."""
    original = Loop._step

    def stopped(self: Loop, *args: Any) -> Any:
        if (self.progress.stage, self.progress.step) == (stage, step - 1):
            self._stop.signal = signal.SIGTERM
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_step", stopped)
        with pytest.raises(TrainingInterrupted):
            train(recipe, folder, quiet=True)


def flip_bit(path: Path, where: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1))] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "first bit of tensors": lambda folder: flip_bit(folder / "state.safetensors", 0),
    "bit of a tensor": lambda folder: flip_bit(folder / "state.safetensors", 0.7),
    "bit of the state": lambda folder: flip_bit(folder / "state.json", 0.5),
    "bit of the checksums": lambda folder: flip_bit(folder / "SHA256SUMS", 0.1),
    "name in the checksums": lambda folder: flip_bit(folder / "SHA256SUMS", 1),
    "no tensors": lambda folder: (folder / "state.safetensors").unlink(),
    "no state": lambda folder: (folder / "state.json").unlink(),
    "no checksums": lambda folder: (folder / "SHA256SUMS").unlink(),
    "truncated": lambda folder: os.truncate(folder / "state.safetensors", 1000),
}


@pytest.fixture(scope="module")
def interrupted(make_recipe: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """A run with two checkpoints, which tests copy."""
    loop = {"eval_every": 2, "save_minutes": 0.0}
    recipe = make_recipe("semi-aux", loop=loop, stage1={"steps": 5}, stage2={"steps": 5})
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    interrupt(recipe, folder)
    return recipe, folder


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_detected(damage: str, interrupted: tuple[Recipe, Path], tmp_path: Path) -> None:
    older, newer = checkpoints(shutil.copytree(interrupted[1], tmp_path / "run") / "checkpoints")
    DAMAGE[damage](newer)
    found, lines = last_checkpoint(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.folder == older
    assert [str(newer) in line and "damaged" in line for line in lines] == [True]
    DAMAGE[damage](older)
    with pytest.raises(DiffaugError, match=r"no checkpoint is left to resume from.*remove .*checkpoints to start"):
        last_checkpoint(tmp_path / "run" / "checkpoints")


def test_the_checkpoint_before_a_damaged_one_gives_the_same_bits(
    interrupted: tuple[Recipe, Path], reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = interrupted[0], shutil.copytree(interrupted[1], tmp_path / "run")
    flip_bit(checkpoints(folder / "checkpoints")[-1] / "state.safetensors", 0.5)
    train(recipe, folder, resume=True)
    assert "stage2-step0000003 is damaged" in capsys.readouterr().err
    assert_same_result(folder, reference)


def test_a_missing_best_model_is_an_error_before_training(interrupted: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, folder = interrupted[0], shutil.copytree(interrupted[1], tmp_path / "run")
    shutil.rmtree(folder / "best")
    with pytest.raises(DiffaugError, match=r"best is missing or damaged.*remove .*checkpoints"):
        train(recipe, folder, resume=True, quiet=True)


@pytest.mark.parametrize("content", [b"", b"\0\0\0\n", b'{"stage": 1}\n', None])
def test_a_damaged_metrics_file_does_not_stop_a_run(
    content: bytes | None, interrupted: tuple[Recipe, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = interrupted[0], shutil.copytree(interrupted[1], tmp_path / "run")
    if content is None:
        (folder / "metrics.jsonl").unlink()
    else:
        (folder / "metrics.jsonl").write_bytes(content)
    train(recipe, folder, resume=True)
    assert "metrics.jsonl is damaged" in capsys.readouterr().err
    assert {entry["stage"] for entry in metrics(folder)} == {2}


def replace_text(path: str | Path, old: str, new: str) -> None:
    text = Path(path).read_text("utf-8")
    assert old in text
    Path(path).write_text(text.replace(old, new), "utf-8")


def copied_inputs(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with copies of its data and backbone, which a test may change."""
    folder.mkdir()
    named = {name: getattr(recipe.data, name) for name in ("nli", "unlabelled", "dev", "test")}
    copies = {name: shutil.copy(source, folder / f"{name}-{Path(source).name}") for name, source in named.items()}
    backbone = shutil.copytree(recipe.model.backbone, folder / "backbone")
    model = replace(recipe.model, backbone=str(backbone))
    return replace(recipe, data=replace(recipe.data, **{name: str(path) for name, path in copies.items()}), model=model)


def changed_weights(recipe: Recipe) -> None:
    path = Path(recipe.model.backbone) / "model.safetensors"
    tensors = load_file(path)
    next(iter(tensors.values())).flatten()[0] += 1
    save_file(tensors, path, metadata={"format": "pt"})


CHANGES: dict[str, Callable[[Recipe], None]] = {
    "data.nli": lambda recipe: replace_text(str(recipe.data.nli), "park", "rain"),
    "data.unlabelled": lambda recipe: replace_text(str(recipe.data.unlabelled), "park", "rain"),
    "data.dev": lambda recipe: replace_text(str(recipe.data.dev), "1", "2"),
    "data.test": lambda recipe: replace_text(str(recipe.data.test), "1", "2"),
    "backbone": changed_weights,
    "tokenizer": lambda recipe: replace_text(
        Path(recipe.model.backbone) / "tokenizer_config.json", "{", '{"a_new_setting": true, '
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changed_inputs_are_refused_and_a_forced_run_says_so(
    what: str, interrupted: tuple[Recipe, Path], tmp_path: Path
) -> None:
    recipe = copied_inputs(interrupted[0], tmp_path / "inputs")
    folder = shutil.copytree(interrupted[1], tmp_path / "run")
    (folder / "recipe.yaml").write_text(recipe.to_yaml(), "utf-8")
    CHANGES[what](recipe)
    with pytest.raises(DiffaugError, match=rf"other inputs: {what} .*was \w{{12}}, is \w{{12}}; .*--force"):
        train(recipe, folder, resume=True, quiet=True)
    assert not (folder / "summary.json").exists()
    train(recipe, folder, resume=True, force=True, quiet=True)
    (change,) = json.loads((folder / "provenance.json").read_text())["changes"]
    assert change.startswith(f"forced: {what} ")


def test_other_versions_are_told_and_recorded(
    interrupted: tuple[Recipe, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = interrupted[0], shutil.copytree(interrupted[1], tmp_path / "run")
    replace_text(folder / "provenance.json", f'"torch": "{torch.__version__}"', '"torch": "1.0"')
    train(recipe, folder, resume=True)
    said = f"torch was 1.0, is {torch.__version__}"
    assert f"since the run was started, {said}" in capsys.readouterr().err
    found = json.loads((folder / "provenance.json").read_text())
    assert found["changes"] == [said]
    assert found["versions"]["torch"] == "1.0"


def test_a_run_without_provenance_goes_on_and_says_so(
    interrupted: tuple[Recipe, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = interrupted[0], shutil.copytree(interrupted[1], tmp_path / "run")
    (folder / "provenance.json").unlink()
    train(recipe, folder, resume=True)
    assert "whether they have changed is unknown" in capsys.readouterr().err
    assert (folder / "provenance.json").exists()


def test_provenance_holds_the_checksums_of_the_files_that_were_read(interrupted: tuple[Recipe, Path]) -> None:
    recipe, folder = interrupted
    found = json.loads((folder / "provenance.json").read_text())
    for role in ("nli", "unlabelled", "dev", "test"):
        source = str(getattr(recipe.data, role))
        assert found["data"][role] == {source: hashlib.sha256(Path(source).read_bytes()).hexdigest()}
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"]
