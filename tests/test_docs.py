"""What the pages for users and contributors claim of the code is true of it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import ntfa
from ntfa import HTFA, NTFA, TFA, TLSA
from ntfa.cli import main

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(ntfa.__file__).parent
MODELS = (NTFA, HTFA, TFA, TLSA)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["CHANGELOG.md", "README.md", "docs/reading.md", "docs/choosing.md", "docs/api/baselines.md"]
)
def test_names_of_the_package_can_be_imported(name: str) -> None:
    dotted = set(re.findall(r"\bntfa(?:\.[a-z_]+)+(?:\.[A-Z]\w+)?\b", page(name)))
    assert dotted
    for path in dotted:
        module, _, last = path.rpartition(".")
        parent = import_module(module)
        assert hasattr(parent, last) or import_module(path), path


def test_models_share_what_their_page_says_they_share() -> None:
    shared, own = re.findall(
        r"share these parameters: (.*?)They\nare documented under `NTFA`\. (.*?)alone", page("docs/api/models.md"), re.S
    )[0]
    parameters, methods = (re.findall(r"`(\w+)`", part) for part in shared.split("methods:"))
    for model in MODELS:
        assert set(parameters) <= model().get_params().keys()
        assert all(callable(getattr(model, method)) for method in methods)
    common = set.intersection(*({*model().get_params()} for model in MODELS))
    assert set(parameters) == common
    for name in re.findall(r"`(\w+)`", own.replace("`NTFA`", "")):
        sources = [inspect.getsource(kind) for kind in NTFA.__mro__ if kind.__module__.startswith("ntfa")]
        assert any(re.search(rf"\b{name}\b", source) for source in sources), name
        assert not any(name in model().get_params() or hasattr(model, name) for model in (HTFA, TFA, TLSA)), name


def test_names_in_the_tables_of_the_model_page_are_in_the_code() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    rows = [line for line in page("docs/model.md").splitlines() if line.startswith("| ") and line.count(" | ") >= 3]
    names = {name for row in rows for name in re.findall(r"`([a-z]\w+)`", row.split(" | ")[-2])}
    assert {"factor_chunk", "z_participant"} <= names
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", source)] == []


# --- CONTRIBUTING.md


def walk(command: str) -> list[tuple[str, str]]:
    text = re.search(rf"^- `{command}`: ((?:.*\n)*?)(?=^- |\n)", page("CONTRIBUTING.md"), re.MULTILINE)
    assert text is not None
    return re.findall(r"`([\w/]+\.py)`\s+\(`(\w+)`\)", text[1])


def first_calls(wanted: list[tuple[str, str]], run: Callable[[], int]) -> list[tuple[str, str]]:
    """Return which of these functions are called, in the order of their first calls."""
    called: list[tuple[str, str]] = []

    def look(frame: object, event: str, argument: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            place = (Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_name)
            if place in wanted and place not in called:
                called.append(place)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        assert run() == 0
    finally:
        sys.setprofile(before)
    return called


@pytest.mark.parametrize("command", ["ntfa fit", "ntfa bids"])
def test_a_walk_through_the_code_is_the_way_it_goes(command: str, tmp_path: Path) -> None:
    wanted = walk(command)
    assert 8 <= len(wanted) <= 12
    data, out = str(tmp_path / "data"), str(tmp_path / "out")
    small = ["--voxels", "150", "--frames", "6", "--participants", "4", "--stimuli", "4", "--quiet"]
    fit = ["--n-factors", "2", "--max-epochs", "3", "--quiet", "--device", "cpu"]
    arguments = {
        "ntfa fit": ["fit", data, out, *fit],
        "ntfa bids": ["bids", data, out, "group", "--rest", "rest", *fit],
    }
    assert main(["simulate", data, *small, *(["--bids"] if "bids" in command else [])]) == 0
    assert first_calls(wanted, lambda: main(arguments[command])) == wanted


def test_files_of_the_package_are_short() -> None:
    lengths = {path.relative_to(SOURCE).as_posix(): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert [name for name, length in lengths.items() if length > 430] == []


def test_the_page_for_contributors_fits_a_screen() -> None:
    assert len(page("CONTRIBUTING.md").splitlines()) <= 60
