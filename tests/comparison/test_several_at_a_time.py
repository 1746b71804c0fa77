"""Fits ahead of the parts that ask for them, several at a time."""

import copy
import dataclasses
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import ntfa.comparison.processes as processes
from ntfa.comparison import PARTS, Settings, compare
from ntfa.comparison.ahead import fit_ahead, needed
from ntfa.comparison.fits import PAPER, Fits
from ntfa.comparison.halves import HALVINGS, halves_of, look_at_half
from ntfa.errors import Interrupted
from ntfa.simulation import Simulation

SOME = ["predictions", "mvpa", "reproducibility"]


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    return {f"{path.parent.name}/{path.name}": pd.read_csv(path, sep="\t") for path in sorted(folder.glob("*/*.tsv"))}


@pytest.fixture(scope="module")
def alone(tiny: Simulation, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison in one process."""
    return compare(tiny.study, tmp_path_factory.mktemp("alone") / "out", settings, parts=SOME)


def test_several_processes_find_what_one_finds(
    tiny: Simulation, settings: Settings, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LEAST_WORK", 0)
    one = tables(alone)
    two = tables(compare(tiny.study, tmp_path / "out", dataclasses.replace(settings, n_jobs=2), parts=SOME))
    assert "reproducibility/halvings.tsv" in one
    assert two.keys() == one.keys()
    for name, table in one.items():
        pd.testing.assert_frame_equal(two[name], table, rtol=1e-6)


def warn(name: str) -> str:
    """Warn of the same and of something else, from whatever process this is."""
    logging.getLogger("ntfa").warning("%s left out", "SRM")
    logging.getLogger("ntfa").warning("no place for %s", name)
    return name


def test_what_other_processes_warn_of_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    assert processes.run_all(warn, [("one",), ("two",)], 2) == ["one", "two"]
    assert caplog.messages == ["SRM left out", "no place for one", "no place for two"]


def test_what_another_process_is_given_has_no_models(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    table = pd.DataFrame({"z1": [0.0]})
    fits = Fits(tiny.study, dataclasses.replace(settings, n_jobs=4), tmp_path, halves={"one": {"PCA": table}})
    assert fits.elsewhere().halves == {}
    assert fits.elsewhere(**fits.halves).halves == {"one": {"PCA": table}}
    assert fits.elsewhere().settings.n_jobs == 1


def test_halves_are_looked_at_ahead_of_their_part(
    tiny: Simulation, settings: Settings, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LEAST_WORK", 0)
    fits = Fits(tiny.study, dataclasses.replace(settings, n_jobs=2), tmp_path / "models")
    fit_ahead(fits, ["reproducibility"])
    assert len(fits.halves) == 6 * settings.n_halvings
    known = Fits(tiny.study, settings, alone / "models")
    for way in HALVINGS:
        for half in halves_of(known, way):
            for method, distances in look_at_half(known, half).items():
                pd.testing.assert_frame_equal(fits.halves[half.name][method], distances, rtol=1e-6)


def test_what_is_fitted_ahead_is_what_parts_ask_for(
    tiny: Simulation, settings: Settings, alone: Path, tmp_path: Path
) -> None:
    known = {(path.name, path.parent.name) for path in (alone / "models").glob("*/*") if path.parent.name != "halves"}
    fits = Fits(tiny.study, settings, alone / "models")
    # Where the data chose networks, the paper's are no fit of their own.
    assert {key for key in needed(fits, SOME) if key[0] != PAPER} == {key for key in known if key[0] != PAPER}
    refitted = dataclasses.replace(settings, refit_per_fold=True)
    assert needed(Fits(tiny.study, refitted, tmp_path), ["mvpa", "connectivity"]) == []
    one_each = dataclasses.replace(tiny.study, trials=tiny.study.trials.groupby("participant").head(1))
    assert needed(Fits(one_each, settings, tmp_path), ["generalisation"]) == []


def test_small_studies_are_fitted_when_they_are_asked_for(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    two = dataclasses.replace(settings, n_jobs=2)
    assert processes.n_at_once(two, tiny.study) == 1
    fit_ahead(Fits(tiny.study, two, tmp_path / "models"), list(PARTS))
    assert not (tmp_path / "models").exists()


def test_no_more_at_a_time_than_memory_is_there_for(
    tiny: Simulation, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LEAST_WORK", 0)
    four = dataclasses.replace(settings, n_jobs=4)
    assert processes.n_at_once(four, tiny.study) == 4
    monkeypatch.setattr(processes, "available_memory", lambda device: 400 << 20)
    assert processes.n_at_once(four, tiny.study) in (1, 2, 3)
    monkeypatch.setattr(processes, "available_memory", lambda device: 0)
    assert processes.n_at_once(four, tiny.study) == 1


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """However it ended: a fit that went on would meet the same one, resumed."""
    program = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from ntfa.comparison.processes import run_all\n"
        "def busy(folder):\n"
        "    (Path(folder) / str(os.getpid())).touch()\n"
        "    time.sleep(300)\n"
        "run_all(busy, [(sys.argv[1],), (sys.argv[1],)], 2)\n"
    )
    started = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    finally:
        started.kill()
        started.wait()
    workers = [int(path.name) for path in tmp_path.iterdir()]
    wait_until(lambda: not any(is_running(worker) for worker in workers))


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.1)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/status")
    # A process that has ended stays in the table until somebody asks for its result.
    return not status.exists() or "State:\tZ" not in status.read_text()


def test_a_stop_comes_back_from_another_process_as_it_was() -> None:
    stop = Interrupted(15, Path("fit.checkpoint"), 7)
    again = copy.copy(stop)
    assert (again.signal_number, str(again)) == (15, str(stop))
