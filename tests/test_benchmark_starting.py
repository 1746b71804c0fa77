"""What the benchmark of the start says is what it timed, and it stops where the first step begins."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("starting")


def test_medians_are_of_each_clock_by_itself_and_ratios_are_said_with_their_seconds(starting: ModuleType) -> None:
    taken = starting.median([starting.Taken(1.0, 9.0), starting.Taken(3.0, 8.0), starting.Taken(2.0, 10.0)])
    assert taken == starting.Taken(2.0, 9.0)
    said = taken.over(starting.Taken(1.0, 3.0))
    assert said == "2.00 x in CPU time (2.00 over 1.00 s), 3.00 x by the clock (9.00 over 3.00 s)"


def test_a_script_says_what_it_took_and_what_it_timed_inside(starting: ModuleType) -> None:
    taken, inside = starting.run("import sys; inside = {'cpu': float(sys.argv[1]), 'wall': 2.0}", "1.5")
    assert inside == starting.Taken(1.5, 2.0)
    assert taken.cpu > 0
    assert taken.wall > 0
    assert starting.run(starting.FLOOR)[1] is None


def test_the_fit_is_stopped_at_its_first_step(starting: ModuleType, tmp_path: Path) -> None:
    said = starting.start(tmp_path, 1, 1)
    assert said.startswith("first step of a fit over import numpy, pandas, torch: ")
    assert (tmp_path / "study").exists()
    assert not (tmp_path / "out").exists()


def test_the_fits_of_a_demo_are_timed_inside_it(starting: ModuleType, tmp_path: Path) -> None:
    whole, fits = starting.run(starting.DEMO, str(tmp_path / "demo"), "quick")
    assert 0 < fits.cpu < whole.cpu
    assert 0 < fits.wall < whole.wall
    assert (tmp_path / "demo" / "report.html").exists()
