from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest
from safetensors import SafetensorError

from diffaug import files
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, atomic_folder, check_output, exclusive_lock, restore, sweep


def tree(folder: Path) -> dict[str, str]:
    """Every path below a folder, hidden ones too, and what the files hold."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else "" for path in sorted(folder.rglob("*"))
    }


def write_and_raise(path: Path, error: BaseException) -> None:
    path.write_text("half")
    raise error


def test_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "made" / "on" / "the way"
    with atomic_folder(target) as temporary:
        (temporary / "a").write_text("1")
        (temporary / "below").mkdir()
        (temporary / "below" / "b").write_text("2")
        assert not target.exists()
        assert temporary.parent == target.parent
    assert tree(target) == {"a": "1", "below": "", "below/b": "2"}
    assert [path.name for path in target.parent.iterdir()] == ["the way"]


def test_folder_is_not_overwritten_unasked(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a").write_text("1")
    with pytest.raises(DiffaugError, match="exists already"), atomic_folder(tmp_path / "old"):
        pytest.fail("the block must not run")
    assert tree(tmp_path) == {"old": "", "old/a": "1"}


@pytest.mark.parametrize("old", ["folder", "file"])
def test_folder_replaces_what_was_there(tmp_path: Path, old: str) -> None:
    target = tmp_path / "target"
    if old == "file":
        target.write_text("old")
    else:
        target.mkdir()
        (target / "gone").write_text("old")
    with atomic_folder(target, overwrite=True) as temporary:
        (temporary / "a").write_text("new")
    assert tree(tmp_path) == {"target": "", "target/a": "new"}


@pytest.mark.parametrize("dangling", [False, True])
def test_links_are_followed(tmp_path: Path, dangling: bool) -> None:
    if not dangling:
        (tmp_path / "file").write_text("old")
        (tmp_path / "folder").mkdir()
    for name in ("file", "folder"):
        (tmp_path / f"to {name}").symlink_to(tmp_path / name)
    with atomic_file(tmp_path / "to file") as temporary:
        temporary.write_text("new")
    with atomic_folder(tmp_path / "to folder", overwrite=True) as temporary:
        (temporary / "a").write_text("new")
    assert (tmp_path / "to file").is_symlink()
    assert (tmp_path / "to folder").is_symlink()
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "a").read_text() == "new"


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_devices_and_pipes_are_refused(pipe: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    for path, kind in ((pipe, "pipe"), (tmp_path / "link", "device"), (Path("/dev/null"), "device")):
        with pytest.raises(DiffaugError, match=f"is a {kind}, not a file"):
            check_output(path)
        with pytest.raises(DiffaugError, match=f"is a {kind}, not a file"), atomic_file(path):
            pytest.fail("the block must not run")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(DiffaugError, match="is a folder, not a file"), atomic_file(tmp_path):
        pytest.fail("the block must not run")


def test_an_output_is_no_input(tmp_path: Path) -> None:
    source, folder = tmp_path / "in.txt", tmp_path / "data"
    source.write_text("1")
    folder.mkdir()
    (folder / "file").write_text("1")
    (tmp_path / "link").symlink_to(source)
    os.link(source, tmp_path / "hard link")
    refused = (source, tmp_path / "link", tmp_path / "hard link", folder, folder / "file", tmp_path)
    for path in refused:
        with pytest.raises(DiffaugError, match=r"would overwrite .*, which the command reads"):
            check_output(path, [source, folder])
    with pytest.raises(DiffaugError, match="cannot be written: File name too long"):
        check_output(tmp_path / ("a" * 300), [source])
    for path in (tmp_path / "new", folder / "new", tmp_path / "in" / "new"):
        check_output(path, [source, folder, None, "bert-base-uncased", "hub:a/b"])


@pytest.mark.parametrize(
    "files", [["diffaug.json"], ["config.json", "model.safetensors"], ["modules.json", "pytorch_model.bin"]]
)
def test_an_output_is_not_in_the_folder_of_a_model(tmp_path: Path, files: list[str]) -> None:
    model = tmp_path / "model"
    (model / "below").mkdir(parents=True)
    check_output(model / "out.npy")
    for name in files:
        (model / name).touch()
    for path in (model / "out.npy", model / "below" / "out.npy"):
        with pytest.raises(DiffaugError, match="the folder of a model"):
            check_output(path)
    check_output(tmp_path / "out.npy")


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt()])
def test_folder_survives_a_failure(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a").write_text("1")
    for name in ("old", "new"):
        with pytest.raises(type(error)), atomic_folder(tmp_path / name, overwrite=True) as temporary:
            write_and_raise(temporary / "a", error)
    assert tree(tmp_path) == {"old": "", "old/a": "1"}


def test_folder_survives_a_failing_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment at which the old one is out of the way and the new one not yet there."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a").write_text("1")
    rename = Path.rename

    def fail_for_the_new(path: Path, target: Path) -> Path:
        if (path / "new").exists():
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    with (
        pytest.raises(DiffaugError, match="old cannot be written: Input/output error"),
        atomic_folder(tmp_path / "old", overwrite=True) as temporary,
    ):
        (temporary / "new").write_text("2")
    assert tree(tmp_path) == {"old": "", "old/a": "1"}


def test_two_that_replace_a_folder_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of one happens at each moment of the other: the last one's folder stays, and neither fails."""
    target, rename, moments = tmp_path / "target", Path.rename, 0

    def disturbed(path: Path, to: Path) -> Path:
        nonlocal moments
        moments += 1
        if moments == disturb_at:  # just before: the other process does all of its own
            with atomic_folder(target, overwrite=True) as other:
                (other / "other").write_text("2")
        return rename(path, to)

    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", disturbed)
    for disturb_at in (1, 2):
        target.mkdir()
        moments = 0
        with atomic_folder(target, overwrite=True) as temporary:
            (temporary / "own").write_text("1")
        assert moments > disturb_at
        assert tree(tmp_path) == {"target": "", "target/own": "1"}
        (target / "own").unlink()
        target.rmdir()


def test_what_another_has_made_meanwhile_is_not_overwritten_unasked(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").write_text("2")
    with pytest.raises(DiffaugError, match="exists already"), atomic_folder(tmp_path / "new"):
        shutil.copytree(other, tmp_path / "new")
    assert tree(tmp_path / "new") == {"a": "2"}


def kill_while_replacing(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a child: replace a folder the way of systems without an exchange, and die between the two renames."""
    target.mkdir()
    (target / "a").write_text("1")
    rename = Path.rename

    def die(path: Path, to: Path) -> Path:
        if to == target:
            os._exit(0)
        return rename(path, to)

    if (child := os.fork()) == 0:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
        monkeypatch.setattr(Path, "rename", die)
        try:
            with atomic_folder(target, overwrite=True) as temporary:
                (temporary / "a").write_text("2")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not target.exists()


def test_a_folder_that_was_set_aside_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    restore(target)
    assert not target.exists()
    kill_while_replacing(target, monkeypatch)
    restore(target)
    assert tree(target) == {"a": "1"}
    restore(target)
    assert tree(target) == {"a": "1"}


def test_the_next_save_puts_back_what_was_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    kill_while_replacing(target, monkeypatch)
    with pytest.raises(DiffaugError, match="exists already"), atomic_folder(target):
        pytest.fail("the block must not run")
    assert tree(target) == {"a": "1"}


@pytest.mark.skipif(files._renameat2() is None, reason="needs Linux")
def test_folders_are_exchanged_without_a_moment_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies at any moment leaves the old folder or the new one under its name."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "a").write_text("1")
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("two renames"))
    with atomic_folder(tmp_path / "target", overwrite=True) as temporary:
        (temporary / "a").write_text("2")
    assert tree(tmp_path) == {"target": "", "target/a": "2"}


def test_a_locked_file_is_refused_and_deleted_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive_lock(path, "busy"), pytest.raises(DiffaugError, match=r"^busy$"), exclusive_lock(path, "busy"):
        pytest.fail("the block must not run")
    assert not path.exists()
    path.write_text("left by a process that died")
    with exclusive_lock(path, "busy"):
        pass
    assert not path.exists()
    (tmp_path / "file").touch()
    with pytest.raises(DiffaugError, match="cannot be written"), exclusive_lock(tmp_path / "file" / "lock", "busy"):
        pytest.fail("the block must not run")


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    path, (ready, write) = tmp_path / "lock", os.pipe()
    if (child := os.fork()) == 0:
        with exclusive_lock(path, "busy"):
            os.write(write, b".")
            time.sleep(60)
        os._exit(1)
    os.read(ready, 1)
    with pytest.raises(DiffaugError, match=r"^busy$"), exclusive_lock(path, "busy"):
        pytest.fail("the block must not run")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert path.exists()
    with exclusive_lock(path, "busy"):
        pass


def test_processes_that_wait_take_turns(tmp_path: Path) -> None:
    """The lock file is deleted after each turn; a process that has opened the deleted file must not count as locked."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    children = []
    for _ in range(3):
        if (child := os.fork()) == 0:
            try:
                for _ in range(30):
                    with exclusive_lock(tmp_path / "lock"):
                        number = int(counter.read_text())
                        time.sleep(0.0005)
                        counter.write_text(str(number + 1))
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert counter.read_text() == "90"


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with exclusive_lock(tmp_path / "lock", "busy"):
        pass


def test_file_replaces_the_old_one_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "below" / "a.npy"
    for text in ("first", "second"):
        with atomic_file(target) as temporary:
            assert temporary.suffix == ".npy"
            temporary.write_text(text)
            assert not target.exists() or target.read_text() == "first"
        assert tree(tmp_path / "below") == {"a.npy": text}


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt()])
def test_file_survives_a_failure(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "old").write_text("1")
    for name in ("old", "new"):
        with pytest.raises(type(error)), atomic_file(tmp_path / name) as temporary:
            write_and_raise(temporary, error)
    assert tree(tmp_path) == {"old": "1"}


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    """Temporary files are private; what they become is not."""
    before = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "file") as temporary:
            temporary.write_text("")
        with atomic_folder(tmp_path / "folder") as folder:
            (folder / "inner").write_text("")
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*")}
    assert modes == {"file": 0o640, "folder": 0o750, "inner": 0o640}


def test_permissions_of_all_threads_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The umask can be read only by changing it, for a moment in which other threads make files, or change it too."""
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask was changed"))
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("")
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "inner").write_text("")


def test_all_is_flushed_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{handle}") if os.path.exists("/proc/self/fd") else "")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    with atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "inner").write_text("x")
    if not os.path.exists("/proc/self/fd"):
        assert len(flushed) == 3
    else:
        assert flushed == [str(temporary / "inner"), str(temporary), str(tmp_path)]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiffaugError, match="cannot be written"), atomic_file(tmp_path / "file" / "a"):
        pytest.fail("the block must not run")
    with pytest.raises(DiffaugError, match="cannot be written"), atomic_folder(tmp_path / "file" / "a"):
        pytest.fail("the block must not run")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),  # of tokenizers
    ],
)
def test_writing_errors_are_told_in_one_sentence(tmp_path: Path, error: Exception) -> None:
    for open_target in (atomic_file, atomic_folder):
        with (
            pytest.raises(DiffaugError, match="target cannot be written: no space left on the disk; free some space"),
            open_target(tmp_path / "target"),
        ):
            raise error
    assert tree(tmp_path) == {}


def test_what_is_swept_up_is_what_writes_leave(tmp_path: Path) -> None:
    written = tmp_path / "written"
    for atomic, target in (
        (atomic_file, written / "a.json"),
        (atomic_file, written / "b"),
        (atomic_folder, written / "c.d"),
    ):
        with atomic(target) as temporary:  # type: ignore[operator]
            copy = tmp_path / temporary.name
            copy.mkdir() if temporary.is_dir() else copy.touch()
    (tmp_path / ".best.diffaug-0a1b2c3d.old").mkdir()
    (tmp_path / ".best.diffaug-0a1b2c3d.old" / "model.json").touch()
    users = [".git", ".env", ".gitignore", ".cache.d", ".best", ".lock", ".notes.2026.txt", "a.0a1b2c3d"]
    users += [".notes.20240131", ".notes.20240131.txt", "a.diffaug-0a1b2c3d", ".diffaug-notes.txt"]
    for name in users:
        (tmp_path / name).mkdir() if name in (".git", ".cache.d") else (tmp_path / name).touch()
    sweep(tmp_path)
    sweep(tmp_path / "nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*users, "written"])
