"""Output folders appear complete or not at all."""

import os
import shutil
from pathlib import Path

import pytest

from ntfa import folders
from ntfa.errors import NTFAError, OutputError
from ntfa.folders import publish, refuse_existing, sibling, write_folder

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
    with pytest.raises(OutputError, match="exists already"), write_folder(old, overwrite=False, mark=MARK):
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
    with pytest.raises(OutputError, match=r"out (is not a folder|exists already)"):
        refuse_existing(out, overwrite, MARK)
    with pytest.raises(OutputError), write_folder(out, overwrite, mark=MARK):
        pytest.fail("let me write")
    assert os.path.lexists(out)


def test_what_appears_in_the_meantime_is_not_replaced(tmp_path: Path, old: Path) -> None:
    out = tmp_path / "new"
    with pytest.raises(OutputError, match="exists already"), write_folder(out, overwrite=False, mark=MARK):
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

    monkeypatch.setattr(folders.os, "replace", fail)
    with pytest.raises(OSError, match="cannot move"), write_folder(old, overwrite=True, mark=MARK) as partial:
        (partial / "new.txt").write_text("new")
    assert names(old) == ["old.txt"]
    assert names(old.parent) == ["out"]


def test_publish_moves_a_finished_folder(tmp_path: Path, old: Path) -> None:
    partial = tmp_path / "partial"
    partial.mkdir()
    with pytest.raises(OutputError, match="exists already"):
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
    with pytest.raises(OutputError, match="holds something else"), write_folder(tmp_path / "thesis", True, mark=MARK):
        pytest.fail("let me write")
    assert names(tmp_path / "thesis") == ["chapter1.tex"]
    (tmp_path / "empty").mkdir()
    with write_folder(tmp_path / "empty", overwrite=True, mark=MARK) as partial:
        (partial / "new.txt").write_text("new")
    assert names(tmp_path / "empty") == ["new.txt"]
