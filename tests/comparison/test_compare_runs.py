"""Going on, starting anew, refusing and leaving out: how a comparison treats its folder and its study."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import naming

from ntfa import Study
from ntfa.comparison import PARTS, Settings, compare
from ntfa.comparison.words import comparison_in_words
from ntfa.errors import ModelError, OutputError, StudyError
from ntfa.simulation import Simulation

pytestmark = pytest.mark.usefixtures("no_figures")

Fits = list[tuple[str, int]]


def changed(study: Study, change: Callable[[dict[str, np.ndarray]], Any]) -> Study:
    frames = {who: array.copy() for who, array in study.frames.items()}
    change(frames)
    return Study.from_arrays(frames, study.trials, study.coordinates, study.mask_img)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def note(folder: Path, part: str) -> str:
    assert names(folder / part) == {"not_possible.txt", "part.json"}
    return (folder / part / "not_possible.txt").read_text()


# --- parts and models


def test_parts_are_added_and_models_are_shared(
    tiny: Simulation, settings: Settings, tmp_path: Path, fits_made: Fits
) -> None:
    out = tmp_path / "out"
    n_train = tiny.study.split("diagonal")[0].n_trials
    compare(tiny.study, out, settings, parts=["generalisation"])
    assert names(out) == {"comparison.json", "models", "generalisation"}
    # The paper's networks are fitted apart where the data chose individual loadings.
    paper = [("NTFA", n_train)] if (out / "models" / "train" / "ntfa-paper").exists() else []
    assert fits_made == paper + [(name, n_train) for name in ("NTFA", "HTFA", "TFA", "TLSA")]
    assert "mse_over_oracle" not in pd.read_csv(out / "generalisation" / "table.tsv", sep="\t")
    fits_made.clear()
    compare(tiny.study, out, settings, parts=["predictions", "generalisation"])
    assert fits_made == []
    compare(tiny.study, out, settings, parts=["embeddings", "mvpa", "connectivity"])
    # One of these is to the halves that calibrate the embeddings' uncertainty.
    assert fits_made == [(name, tiny.study.n_trials) for name in ("NTFA", "NTFA", "NTFA", "HTFA", "TFA")]
    fits_made.clear()
    compare(tiny.study, out, settings, parts=["reproducibility"])
    assert fits_made == [("NTFA", tiny.study.n_trials // 2)] * 6
    assert names(out) == {"comparison.json", "models", *PARTS}


def test_a_part_that_fails_leaves_nothing_and_the_others_stay(
    tiny: Simulation, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits_made: Fits
) -> None:
    out = tmp_path / "out"

    def stop(fits: Any, folder: Path, truth: Any) -> None:
        fits.on_train("ntfa")
        (folder / "half.tsv").write_text("half")
        raise KeyboardInterrupt

    parts = ["generalisation", "predictions"]
    with monkeypatch.context() as patch:
        patch.setitem(PARTS, "predictions", stop)
        with pytest.raises(KeyboardInterrupt):
            compare(tiny.study, out, settings, parts=parts)
    assert names(out) == {"comparison.json", "models", "generalisation"}
    before = (out / "generalisation" / "table.tsv").stat().st_mtime_ns
    fits_made.clear()
    compare(tiny.study, out, settings, parts=parts)
    assert fits_made == []
    assert names(out) == {"comparison.json", "models", *parts}
    assert (out / "generalisation" / "table.tsv").stat().st_mtime_ns == before


def test_models_that_were_kept_give_the_same_results(
    tiny: Simulation, settings: Settings, tmp_path: Path, fits_made: Fits
) -> None:
    out = compare(tiny.study, tmp_path / "out", settings, parts=["generalisation"])
    before = (out / "generalisation" / "table.tsv").read_text()
    shutil.rmtree(out / "generalisation")
    fits_made.clear()
    compare(tiny.study, out, settings, parts=["generalisation"])
    assert fits_made == []
    assert (out / "generalisation" / "table.tsv").read_text() == before


def test_test_trials_are_never_seen(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    test = tiny.study.split("diagonal")[1]

    def spoil(frames: dict[str, np.ndarray]) -> None:
        rng = np.random.default_rng(0)
        for who, start, stop in test.trials[["participant", "start", "stop"]].itertuples(index=False):
            frames[who][start:stop] = rng.normal(5, 30, size=(stop - start, test.n_voxels))

    spoilt = changed(tiny.study, spoil)
    folders = [
        compare(study, tmp_path / name, settings, parts=["generalisation"])
        for name, study in (("clean", tiny.study), ("spoilt", spoilt))
    ]
    for method in ("ntfa", "htfa", "tfa", "tlsa"):
        files = [folder / "models" / "train" / method / "model.safetensors" for folder in folders]
        assert files[0].read_bytes() == files[1].read_bytes(), method
    tables = [pd.read_csv(folder / "generalisation" / "table.tsv", sep="\t") for folder in folders]
    assert (tables[1]["log_predictive"] < 2 * tables[0]["log_predictive"]).all(), "test frames must matter to scores"


# --- another comparison in the same place


@pytest.mark.parametrize(
    "changes", [{"n_factors": 2}, {"max_epochs": 5, "seed": 4}, {"stimulus_labels": ("category",)}]
)
def test_other_settings_are_refused_and_named(
    tiny: Simulation, settings: Settings, tmp_path: Path, changes: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    compare(tiny.study, out, settings, parts=[])
    with pytest.raises(OutputError) as error:
        compare(tiny.study, out, dataclasses.replace(settings, **changes), parts=[])
    for name, value in changes.items():
        before, now = (list(one) if isinstance(one, tuple) else one for one in (getattr(settings, name), value))
        assert re.search(naming(name, before, now), str(error.value))


def test_where_and_how_it_is_run_may_change(
    tiny: Simulation, settings: Settings, tmp_path: Path, fits_made: Fits
) -> None:
    out = tmp_path / "out"
    compare(tiny.study, out, settings, parts=["generalisation"])
    assert fits_made
    fits_made.clear()
    elsewhere = dataclasses.replace(settings, n_jobs=2, quiet=False, device="auto")
    compare(tiny.study, out, elsewhere, parts=["generalisation", "predictions"])
    assert fits_made == []
    assert {"generalisation", "predictions"} <= names(out)


def test_another_study_is_refused_and_overwrite_replaces(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "out"
    compare(tiny.study, out, settings, parts=[])
    (out / "mvpa").mkdir()
    study = tiny.study
    relabelled = study.trials.assign(category=study.trials["category"].sample(frac=1, random_state=0).to_numpy())
    others = [
        changed(study, lambda frames: frames["sub-02"].__imul__(1.5)),
        Study.from_arrays(study.frames, study.trials, study.coordinates + 1),
        Study.from_arrays(study.frames, relabelled, study.coordinates),
        study.select(participants=study.participants[:3]),
    ]
    for other in others:
        with pytest.raises(OutputError, match=naming(out)):
            compare(other, out, settings, parts=[])
    compare(others[0], out, settings, parts=[], overwrite=True)
    assert names(out) == {"comparison.json"}
    compare(others[0], out, settings, parts=[])


def test_a_saved_study_is_the_same_study(tiny: Simulation, settings: Settings, tmp_path: Path, fits_made: Fits) -> None:
    tiny.study.save(tmp_path / "study")
    compare(tiny.study, tmp_path / "out", settings, parts=["generalisation"])
    known = (tmp_path / "out" / "comparison.json").read_bytes()
    fits_made.clear()
    compare(Study.open(tmp_path / "study"), tmp_path / "out", settings, parts=["generalisation"])
    assert fits_made == []
    assert (tmp_path / "out" / "comparison.json").read_bytes() == known


def test_somebody_elses_folder_is_left_alone(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=naming("comparison.json")):
            compare(tiny.study, tmp_path, settings, overwrite=overwrite)
    assert names(tmp_path) == {"thesis.tex"}


# --- wrong settings are found before anything is done


WRONG = [
    ({"category": "taste"}, StudyError, naming("'taste'", "category")),
    ({"run": "session"}, StudyError, naming("'session'")),
    ({"participant_labels": ("age",)}, StudyError, naming("'age'", "group")),
    ({"stimulus_labels": ("run",)}, StudyError, naming("'run'", "category")),
    ({"across": "runs"}, ModelError, naming("across='runs'", "'participants'")),
    ({"atlas": "aal"}, ModelError, naming("atlas='aal'", "'seitzman'")),
    ({"htfa_block": "run"}, ModelError, naming("htfa_block='run'", "'trial'")),
]


@pytest.mark.parametrize(("changes", "kind", "named"), WRONG, ids=[next(iter(wrong[0])) for wrong in WRONG])
def test_wrong_settings_are_refused_before_anything_is_written(
    tiny: Simulation, settings: Settings, tmp_path: Path, changes: dict[str, Any], kind: type[Exception], named: str
) -> None:
    with pytest.raises(kind, match=named):
        compare(tiny.study, tmp_path / "out", dataclasses.replace(settings, **changes))
    assert names(tmp_path) == set()


def test_an_unknown_part_is_refused(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=naming("'magic'", *PARTS)):
        compare(tiny.study, tmp_path / "out", settings, parts=["mvpa", "magic"])
    assert names(tmp_path) == set()


# --- studies that not everything can be done with


def test_a_single_participant(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    out = compare(tiny.study.select(participants="sub-01"), tmp_path / "out", settings)
    for part in ("generalisation", "predictions"):
        assert "task1_stim1" in note(out, part)
    assert "diagonal" in note(out, "reproducibility")
    assert set(pd.read_csv(out / "embeddings" / "stimuli.tsv", sep="\t")["method"]) == {"NTFA", "PCA"}
    assert set(pd.read_csv(out / "mvpa" / "overall.tsv", sep="\t")["unit"]) == {"fold"}
    said = comparison_in_words(out)
    assert note(out, "generalisation").strip() in said[0]
    assert any(sentence.startswith("MVPA, AUC") for sentence in said)


def test_trials_of_one_frame(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    trials = tiny.study.trials.assign(stop=tiny.study.trials["start"] + 1)
    short = Study.from_arrays(tiny.study.frames, trials, tiny.study.coordinates)
    out = compare(short, tmp_path / "out", settings)
    assert "1 frame" in note(out, "connectivity")
    assert any(note(out, "connectivity").strip() in sentence for sentence in comparison_in_words(out))
    for part in ("generalisation", "predictions", "mvpa", "reproducibility"):
        for path in set((out / part).glob("*.tsv")) - {out / "reproducibility" / "left_out.tsv"}:
            assert pd.read_csv(path, sep="\t").select_dtypes("number").notna().any(axis=None), path


def test_stimuli_shown_once_cannot_be_classified(
    tiny: Simulation, settings: Settings, tmp_path: Path, fits_made: Fits
) -> None:
    once = tiny.study.select(trials=tiny.study.trials["run"] == 1)
    settings = dataclasses.replace(settings, category="stimulus")
    out = compare(once, tmp_path / "out", settings, parts=["mvpa", "connectivity"])
    for part in ("mvpa", "connectivity"):
        assert "'stimulus'" in note(out, part)
    assert fits_made == [], "nothing is fitted for what is not possible"


def test_both_ways_where_only_one_is_possible(
    tiny: Simulation, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = dataclasses.replace(settings, across="both")
    alone = tiny.study.select(participants="sub-01")
    out = compare(alone, tmp_path / "alone", settings, parts=["mvpa"])
    assert set(pd.read_csv(out / "mvpa" / "overall.tsv", sep="\t")["across"]) == {"trials"}
    assert "participants" in caplog.text
    out = compare(tiny.study, tmp_path / "all", settings, parts=["mvpa"])
    assert set(pd.read_csv(out / "mvpa" / "overall.tsv", sep="\t")["across"]) == {"trials", "participants"}
    assert {"auc_trials.png", "auc_participants.png"} <= names(out / "mvpa")


def test_one_factor_has_no_pairs(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    settings = dataclasses.replace(settings, n_factors=1)
    out = compare(tiny.study, tmp_path / "out", settings, parts=["connectivity"])
    assert set(pd.read_csv(out / "connectivity" / "overall.tsv", sep="\t")["features"]) == {"power regions"}
    elsewhere = Study.from_arrays(tiny.study.frames, tiny.study.trials, tiny.study.coordinates + 1000)
    out = compare(elsewhere, tmp_path / "elsewhere", settings, parts=["connectivity"])
    assert note(out, "connectivity")


def test_refitting_for_each_fold(tiny: Simulation, settings: Settings, tmp_path: Path, fits_made: Fits) -> None:
    settings = dataclasses.replace(settings, refit_per_fold=True)
    out = compare(tiny.study, tmp_path / "out", settings, parts=["mvpa"])
    half = tiny.study.n_trials // 2
    assert fits_made == [(name, half) for name in ("NTFA", "HTFA", "TFA") for _ in range(2)]
    assert {"NTFA", "HTFA", "TFA", "ICA", "voxel"} <= set(
        pd.read_csv(out / "mvpa" / "overall.tsv", sep="\t")["features"]
    )
    assert not (out / "models").exists()


def test_odd_labels_come_back(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    odd = dict(zip(tiny.study.participants, ["sub/01", "NA", "été #2", "04"], strict=True))
    shown = dict(zip(tiny.study.stimuli, ["a b", "{x}", "$y$", "1.0"], strict=True))
    trials = tiny.study.trials.assign(
        participant=tiny.study.trials["participant"].map(odd),
        stimulus=tiny.study.trials["stimulus"].map(shown),
        category=tiny.study.trials["category"].map({"Task 1": "<b>&", "Task 2": "two%"}),
    )
    frames = {odd[who]: array for who, array in tiny.study.frames.items()}
    study = Study.from_arrays(frames, trials, tiny.study.coordinates, tiny.study.mask_img)
    out = compare(study, tmp_path / "out", settings)
    options: dict[str, Any] = {"sep": "\t", "dtype": str, "keep_default_na": False}
    participants = pd.read_csv(out / "embeddings" / "participants.tsv", **options)
    assert set(participants["participant"]) == set(odd.values())
    assert set(pd.read_csv(out / "predictions" / "correlations.tsv", **options)["stimulus"]) == set(shown.values())
    assert set(pd.read_csv(out / "mvpa" / "by_category.tsv", **options)["category"]) == {"<b>&", "two%"}
    assert len(comparison_in_words(out)) >= 5
