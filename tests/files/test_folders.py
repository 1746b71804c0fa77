"""Output folders appear complete or not at all."""

import errno
import fcntl
import os
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_names, naming

from ntfa.errors import NTFAError, OutputError
from ntfa.files import folders
from ntfa.files.folders import (
    free_at,
    only_writer,
    publish,
    refuse_existing,
    require_room,
    save_array,
    sibling,
    tidy_inside,
    write_folder,
)

MARK = "old.txt"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "er" / "out"
    with write_folder(out, overwrite=False, mark=MARK) as partial:
        (partial / "new.txt").write_text("new")
        assert not out.exists()
        assert partial.parent == out.parent, "on the same file system, so that it can be moved"
    assert names(out) == ["new.txt"]
    assert names(out.parent) == ["out"]


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with write_folder(Path("out"), overwrite=False, mark=MARK) as partial:
        (partial / "new.txt").write_text("new")
    assert names(tmp_path / "out") == ["new.txt"]


def test_an_existing_folder_is_replaced_only_if_told(old: Path) -> None:
    with pytest.raises(OutputError, match=naming(old)), write_folder(old, overwrite=False, mark=MARK):
        pytest.fail("let me write")
    assert names(old) == ["old.txt"]
    with write_folder(old, overwrite=True, mark=MARK) as partial:
        (partial / "new.txt").write_text("new")
        assert names(old) == ["old.txt"]
    assert names(old) == ["new.txt"]
    assert names(old.parent) == ["out"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_and_the_old_one_intact(old: Path, tmp_path: Path, error: type[BaseException]) -> None:
    for folder in (old, tmp_path / "new"):
        with pytest.raises(error):
            _fail_halfway(folder, error)
    assert names(tmp_path) == ["out"]
    assert (old / "old.txt").read_text() == "old"


def _fail_halfway(folder: Path, error: type[BaseException]) -> None:
    with write_folder(folder, overwrite=True, mark=MARK) as partial:
        (partial / "half.txt").write_text("half")
        raise error


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_what_is_not_a_folder_is_never_replaced(tmp_path: Path, kind: str, overwrite: bool) -> None:
    out, target = tmp_path / "out", tmp_path / "target"
    if kind == "file":
        out.write_text("mine")
    else:
        if kind == "link":
            target.mkdir()
        out.symlink_to(target)
    with pytest.raises(OutputError, match=naming(out)):
        refuse_existing(out, overwrite, MARK)
    with pytest.raises(OutputError), write_folder(out, overwrite, mark=MARK):
        pytest.fail("let me write")
    assert os.path.lexists(out)


def test_what_appears_in_the_meantime_is_not_replaced(tmp_path: Path, old: Path) -> None:
    out = tmp_path / "new"
    with pytest.raises(OutputError, match=naming(out)), write_folder(out, overwrite=False, mark=MARK):
        shutil.copytree(old, out)
    assert names(out) == ["old.txt"]
    assert names(tmp_path) == ["new", "out"]


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if "partial" in Path(source).name:
            raise OSError("cannot move")
        replace(source, target)

    monkeypatch.setattr(folders, "exchange", lambda one, other: False)
    monkeypatch.setattr(folders.os, "replace", fail)
    with pytest.raises(OSError, match="cannot move"), write_folder(old, overwrite=True, mark=MARK) as partial:
        (partial / "new.txt").write_text("new")
    assert names(old) == ["old.txt"]
    assert names(old.parent) == ["out"]


def test_publish_moves_a_finished_folder(tmp_path: Path, old: Path) -> None:
    partial = tmp_path / "partial"
    partial.mkdir()
    with pytest.raises(OutputError, match=naming(old)):
        publish(partial, old, overwrite=False, mark=MARK)
    assert partial.exists()
    publish(partial, old, overwrite=True, mark=MARK)
    assert names(tmp_path) == ["out"]
    assert names(old) == []


def test_hidden_names_beside_a_folder_are_never_the_same(tmp_path: Path) -> None:
    found = {sibling(tmp_path / "out", "partial") for _ in range(100)}
    assert len(found) == 100
    for path in found:
        assert path.parent == tmp_path
        assert path.name.startswith(".out.partial-")


def test_a_place_where_no_folder_can_be_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NTFAError, match="file"), write_folder(tmp_path / "file" / "out", overwrite=False, mark=MARK):
        pytest.fail("let me write")


def test_somebody_elses_folder_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    with pytest.raises(OutputError, match=naming("thesis")), write_folder(tmp_path / "thesis", True, mark=MARK):
        pytest.fail("let me write")
    assert names(tmp_path / "thesis") == ["chapter1.tex"]
    (tmp_path / "empty").mkdir()
    with write_folder(tmp_path / "empty", overwrite=True, mark=MARK) as partial:
        (partial / "new.txt").write_text("new")
    assert names(tmp_path / "empty") == ["new.txt"]


# --- one writer at a time, and what killed ones leave


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with only_writer(out):
        assert names(out.parent) == [".out.lock"]
        with pytest.raises(OutputError, match=naming(os.getpid())), only_writer(out):
            pytest.fail("let me write")
        with only_writer(tmp_path / "deep" / "other"):
            pass
    assert names(out.parent) == []
    with only_writer(out):
        pass


def test_a_lock_that_was_left_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".out.lock").write_text("process 1 on elsewhere")
    with only_writer(tmp_path / "out"):
        assert str(os.getpid()) in (tmp_path / ".out.lock").read_text()
    assert names(tmp_path) == []


def test_somebody_elses_lock_is_not_removed(tmp_path: Path) -> None:
    """The lock's file was removed while it was held, and another process has made a new one."""
    with only_writer(tmp_path / "out"):
        (tmp_path / ".out.lock").unlink()
        (tmp_path / ".out.lock").write_text("another")
    assert (tmp_path / ".out.lock").read_text() == "another"


def test_a_file_system_without_locks_is_said_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(folders.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with only_writer(tmp_path / "out"):
        pass
    (record,) = caplog.records
    assert_names(record.getMessage(), tmp_path)


def test_leftovers_go_and_nothing_else_does(tmp_path: Path, old: Path) -> None:
    left = [".out.partial-0123abcd", ".out.old-0123abcd", ".out.discarded-0123abcd"]
    others = [".out.checkpoint", ".out.partial-mine", ".other.partial-0123abcd", "out.partial-0123abcd"]
    for name in left + others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    with only_writer(old):
        pass
    assert names(tmp_path) == sorted([*others, "out"])
    tidy_inside(tmp_path)
    assert names(tmp_path) == sorted([*others[:2], others[3], "out"])
    assert names(old) == ["old.txt"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no atomic exchange that is used here")
def test_two_folders_are_exchanged_at_one_moment(tmp_path: Path, old: Path) -> None:
    (tmp_path / "new").mkdir()
    if not folders.exchange(tmp_path / "new", old):
        pytest.skip("this file system cannot")
    assert names(old) == []
    assert names(tmp_path / "new") == ["old.txt"]


@pytest.mark.parametrize("size", [10, 1000, 100_000])
def test_an_array_that_does_not_fit_on_the_disk_is_noticed(tmp_path: Path, size: int) -> None:
    """Also one that is small enough to be written only when the file is closed."""
    array = np.arange(size, dtype=np.float32).reshape(2, -1)
    save_array(tmp_path / "array.npy", array)
    np.testing.assert_array_equal(np.load(tmp_path / "array.npy"), array)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * size, before[1]))
    try:
        with pytest.raises(OSError):
            save_array(tmp_path / "other.npy", array)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# --- how much room there is


class Full:
    """A file on a full disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *error: object) -> None: ...

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_with_the_file_and_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.zeros((1000, 1000), dtype=np.float32)
    monkeypatch.setattr(Path, "open", lambda path, *mode: Full(path))
    with (
        pytest.raises(OutputError, match=naming(tmp_path / "out" / "frames.npy", "4.0 MB", "free")),
        write_folder(tmp_path / "out", overwrite=False, mark="x", needed=array.nbytes) as folder,
    ):
        save_array(folder / "frames.npy", array)
    assert not any(tmp_path.iterdir())


def test_room_is_asked_for_where_the_folder_will_be(tmp_path: Path) -> None:
    assert free_at(tmp_path / "not" / "yet") == free_at(tmp_path) > 0
    require_room(tmp_path / "out", 0)
    with pytest.raises(OutputError, match=naming(tmp_path / "out")):
        require_room(tmp_path / "out", 2**62)


def fill(folder: Path) -> None:
    """Write files until there is no room, as the system says it: without a name."""
    (folder / "table").write_bytes(bytes(100_000))
    (folder / "model").write_bytes(bytes(200_000))
    os.utime(folder / "table", (0, 0))
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_file_that_no_longer_fitted_is_named_where_the_system_does_not_say(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=naming(tmp_path / "out" / "model", "more than 0.3 MB", "make room")),
        write_folder(tmp_path / "out", overwrite=False, mark="x") as folder,
    ):
        fill(folder)
    assert not any(tmp_path.iterdir())
