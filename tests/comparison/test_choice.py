"""`ntfa choose`: successive halving, trials that are kept, and what is written."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ntfa import simulate
from ntfa.cli import main
from ntfa.comparison.choice import Question, choose_settings, halving
from ntfa.errors import ModelError
from ntfa.estimators.trials import Candidate, Trial

ERRORS = {2: 0.9, 4: 0.6, 8: 0.501, 16: 0.5, 32: 0.55}


def fake_trial(candidate: Candidate, fold: int) -> Trial:
    """Errors as in ERRORS, with noise that people have in all candidates, and a little of each one's own."""
    shared = np.random.default_rng(fold).normal(size=20)
    own = np.random.default_rng([fold, candidate.n_factors]).normal(size=20)
    errors = ERRORS[candidate.n_factors] + 0.2 * shared + 0.01 * own
    return Trial(errors, errors, {"participants": shared, "stimuli": shared[:5]}, 1.0)


def test_the_smallest_that_suffices_is_chosen_and_half_are_tried_once() -> None:
    tried: list[tuple[int, int]] = []

    def run(jobs):
        tried.extend((one.n_factors, fold) for one, fold in jobs)
        return [fake_trial(*job) for job in jobs]

    candidates = [Candidate("loadings", number) for number in ERRORS]
    found = halving(candidates, run, 4, lambda trial: trial.factor_errors)
    assert found.chosen.n_factors == 8
    assert sorted(tried) == sorted([(k, 0) for k in ERRORS] + [(k, f) for k in (8, 16, 32) for f in (1, 2, 3)])
    table = found.table("n_factors").set_index("n_factors")
    assert table["chosen"].to_dict() == {k: k == 8 for k in ERRORS}
    assert table["n_folds"].to_dict() == {2: 1, 4: 1, 8: 4, 16: 4, 32: 4}
    for number in ERRORS:
        assert table.loc[number, "more"] == pytest.approx(ERRORS[number] - ERRORS[8], abs=0.015)
        # Pairs share their noise: a difference is known better than an error.
        assert table.loc[number, "more_se"] < 0.3 * table.loc[number, "factor_error_se"]
    assert np.isnan(table.loc[2, "agreement_stimuli"])
    assert -1 <= table.loc[8, "agreement_stimuli"] <= 1


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choose") / "study"
    simulate("synthetic", n_voxels=300, random_state=0).study.save(folder)
    return folder


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ntfa.estimators.trials.TRIAL_EPOCHS", 40)


OPTIONS = ["--n-factors", "1,3", "--embedding-dim", "1,2", "--folds", "2", "--response", "loadings", "-q"]


def test_the_command_writes_a_table_a_curve_and_a_choice(saved: Path, tmp_path: Path, short: None) -> None:
    out = tmp_path / "choice"
    assert main(["choose", str(saved), str(out), *OPTIONS]) == 0
    chosen = json.loads((out / "choice.json").read_text())
    assert chosen["n_factors"] == 3
    assert chosen["response"] == "loadings"
    table = pd.read_csv(out / "choice.tsv", sep="\t")
    assert table.groupby("choosing")["chosen"].sum().to_dict() == {"embedding_dim": 1, "n_factors": 1}
    assert set(table["n_factors"]) == {1, 3}
    for name in ("choice.png", "choice.svg"):
        assert (out / name).stat().st_size > 1000


def test_trials_that_are_there_are_not_run_again(
    saved: Path, tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "choice"
    assert main(["choose", str(saved), str(out), *OPTIONS]) == 0
    first = (out / "choice.tsv").read_text()
    damaged = sorted((out / "trials").iterdir())[0]
    damaged.write_text("{")
    (out / "choice.json").unlink()
    ran = []
    run = "ntfa.comparison.choice.KeptTrials._write"
    from ntfa.comparison.choice import KeptTrials

    write = KeptTrials._write
    monkeypatch.setattr(run, lambda self, *job: (ran.append(job[:2]), write(self, *job)))
    assert main(["choose", str(saved), str(out), *OPTIONS]) == 0
    assert len(ran) == 1
    columns = [name for name in pd.read_csv(out / "choice.tsv", sep="\t") if name != "seconds"]
    again = pd.read_csv(out / "choice.tsv", sep="\t")[columns]
    (tmp_path / "first.tsv").write_text(first)
    pd.testing.assert_frame_equal(again, pd.read_csv(tmp_path / "first.tsv", sep="\t")[columns])


def test_a_study_that_leaves_nothing_out_and_a_foreign_folder_are_refused(saved: Path, tmp_path: Path) -> None:
    study = simulate("synthetic", n_voxels=60, n_frames=2, random_state=0).study
    alone = study.select(participants=study.participants[:2])
    with pytest.raises(ModelError, match="three participants"):
        choose_settings(Question(alone), tmp_path)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thesis.tex").write_text("mine")
    assert main(["choose", str(saved), str(tmp_path / "else"), "-q"]) == 1
    assert (tmp_path / "else" / "thesis.tex").read_text() == "mine"
