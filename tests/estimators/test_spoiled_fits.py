"""Fits to studies with frames that movement spoiled, of all models: nearly those to the same study without movement."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import assert_names

from ntfa import HTFA, NTFA, Study, simulate
from ntfa.cli import main
from ntfa.errors import Interrupted
from ntfa.fitting.checkpoint import Checkpoint

SHARE = 0.06


@pytest.fixture(scope="module")
def clean() -> Study:
    return simulate("synthetic", n_participants=6, n_stimuli=4, n_frames=6, n_voxels=300, random_state=0).study


@pytest.fixture(scope="module")
def moved(clean: Study) -> dict[str, list[int]]:
    """Trial frames that movement spoils, by participant."""
    rng, found = np.random.default_rng(1), {}
    for who, own in clean.trials.groupby("participant"):
        rows = np.concatenate([np.arange(*span) for span in own[["start", "stop"]].to_numpy()])
        found[str(who)] = sorted(rng.choice(rows, max(1, round(SHARE * len(rows))), replace=False).tolist())
    return found


@pytest.fixture(scope="module")
def spoiled(clean: Study, moved: dict[str, list[int]]) -> Study:
    rng, frames = np.random.default_rng(2), {}
    for who, array in clean.frames.items():
        pattern = clean.coordinates @ rng.normal(size=3)
        frames[who] = array.copy()
        frames[who][moved[who]] += (6 * rng.choice([-1, 1], (len(moved[who]), 1)) * pattern / pattern.std()).astype(
            "f4"
        )
    return Study.from_arrays(frames, clean.trials, clean.coordinates)


def difference(one: Any, other: Any, study: Study) -> float:
    pairs = study.trials[["participant", "stimulus"]].drop_duplicates()
    images, expected = one.predict(pairs), other.predict(pairs)
    return float(((images - expected) ** 2).sum() / (expected**2).sum())


def test_predictions_are_those_without_movement(kind: Any, clean: Study, spoiled: Study) -> None:
    settings = {"max_epochs": 60} | ({"uncertainty": "laplace"} if kind.name.startswith("ntfa") else {})
    expected = kind.make(**settings).fit(clean)
    robust, equal = (kind.make(frames=how, **settings).fit(spoiled) for how in ("robust", "equal"))
    assert difference(robust, expected, clean) < 0.2 * difference(equal, expected, clean)
    # The noise is that of frames that count, and too small by half of the share of the others.
    assert robust.noise_ == pytest.approx(expected.noise_ * (1 - SHARE / 2), rel=0.02)
    assert not hasattr(equal, "frames_")


def test_individual_loadings_are_those_without_movement(clean: Study, spoiled: Study) -> None:
    settings = {"n_factors": 3, "max_epochs": 60, "random_state": 0, "response": "loadings", "uncertainty": "laplace"}
    expected = NTFA(**settings).fit(clean)
    robust, equal = (NTFA(**settings, frames=how).fit(spoiled) for how in ("robust", "equal"))
    assert difference(robust, expected, clean) < 0.2 * difference(equal, expected, clean)
    assert robust.noise_ == pytest.approx(expected.noise_, rel=0.06)


def test_the_table_has_every_frame(spoiled: Study, moved: dict[str, list[int]]) -> None:
    table = HTFA(n_factors=2, max_epochs=1, random_state=0).fit(spoiled).frames_
    assert len(table) == spoiled.n_trial_frames
    for trial, own in table.groupby("trial"):
        row = spoiled.trials.loc[trial]
        assert own["frame"].tolist() == list(range(row["start"], row["stop"]))
        assert set(own["participant"]) == {row["participant"]}
        assert set(own["stimulus"]) == {row["stimulus"]}
    low = table[table["weight"] < 1]
    found = {str(who): own["frame"].tolist() for who, own in low.groupby("participant")}
    assert found == moved
    assert (low["weight"] < 0.01).all()
    assert table.drop(index=low.index)["distance"].max() < 1.5 < low["distance"].min()


def test_a_run_with_many_is_named(spoiled: Study, caplog: pytest.LogCaptureFixture) -> None:
    who = spoiled.participants[2]
    frames = {label: array.copy() for label, array in spoiled.frames.items()}
    own = spoiled.trials[spoiled.trials["participant"] == who].iloc[0]
    frames[who][own["start"] : own["stop"] - 2] += np.linspace(-40, 40, spoiled.n_voxels, dtype=np.float32)
    runs = spoiled.trials["start"].eq(own["start"]).map({True: "run-7", False: "run-8"})
    study = Study.from_arrays(frames, spoiled.trials.assign(run=runs), spoiled.coordinates)
    with caplog.at_level(logging.WARNING, "ntfa"):
        HTFA(n_factors=2, max_epochs=1, random_state=0).fit(study)
    (message,) = [record.getMessage() for record in caplog.records if "frames" in record.getMessage()]
    assert_names(message, who, "run-7", "4 of 6")
    assert "run-8" not in message


def test_an_interrupted_fit_goes_on_to_the_same_bits(
    spoiled: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> NTFA:
        return NTFA(3, max_epochs=12, random_state=0, uncertainty="mean-field", response="network")

    original = Checkpoint.after_step
    with pytest.MonkeyPatch.context() as patch:

        def stop(self: Checkpoint, trainer: Any) -> None:
            if len(trainer.history.bounds) == 5:
                self.signals.append(15)
            original(self, trainer)

        patch.setattr(Checkpoint, "after_step", stop)
        with pytest.raises(Interrupted):
            make().fit(spoiled, checkpoint=tmp_path)
    resumed, whole = make().fit(spoiled, checkpoint=tmp_path), make().fit(spoiled)
    for name in ("factors_", "participants_", "frames_"):
        pd.testing.assert_frame_equal(getattr(resumed, name), getattr(whole, name), check_exact=True)


@pytest.mark.parametrize("response", ["loadings", "network"])
def test_frames_on_disk_are_found_too(spoiled: Study, tmp_path: Path, response: str) -> None:
    spoiled.save(tmp_path / "study")
    settings = {
        "max_epochs": 20,
        "random_state": 0,
        "response": response,
        "uncertainty": "mean-field",
        "init": "pursuit",
    }
    stored = Study.open(tmp_path / "study")
    found = NTFA(3, **settings, memory="4GB").fit(stored)
    expected = NTFA(3, **settings, coarse="always").fit(spoiled)
    pd.testing.assert_frame_equal(found.frames_, expected.frames_)
    np.testing.assert_allclose(found.history_["bound"], expected.history_["bound"], rtol=1e-6)


def test_newcomers_who_moved_get_the_places_they_would_have_had(clean: Study, spoiled: Study) -> None:
    new = clean.participants[4:]
    settings = {"random_state": 0, "max_epochs": 60, "response": "loadings", "embedding_dim": (1, 2)}
    model = NTFA(3, uncertainty="laplace", **settings).fit(clean.select(participants=clean.participants[:4]))
    expected, found = (model.add(study.select(participants=new)).participants_["z1"] for study in (clean, spoiled))
    model._fitted.params["frames"] = "equal"
    equal = model.add(spoiled.select(participants=new)).participants_["z1"]
    apart = [float(np.abs(one[new] - expected[new]).max()) for one in (found, equal)]
    assert apart[0] < 0.5 * apart[1]


def test_scores_and_weights_take_frames_as_they_are(spoiled: Study) -> None:
    model = HTFA(n_factors=2, max_epochs=3, random_state=0).fit(spoiled)
    assert (model.frames_["weight"] < 1).any()
    assert model._fitted.arranged(spoiled).frames.cells.trust is None


def test_the_command_line(spoiled: Study, tmp_path: Path, no_pictures: None) -> None:
    spoiled.save(tmp_path / "study")
    fit = ["fit", str(tmp_path / "study"), "--model", "htfa", "--n-factors", "2", "--max-epochs", "2"]
    assert main([*fit[:2], str(tmp_path / "robust"), *fit[2:]]) == 0
    assert main([*fit[:2], str(tmp_path / "equal"), *fit[2:], "--frames", "equal"]) == 0
    assert (pd.read_csv(tmp_path / "robust" / "frames.tsv", sep="\t")["weight"] < 1).any()
    assert not (tmp_path / "equal" / "frames.tsv").exists()
    assert HTFA.load(tmp_path / "equal").fitted_params["frames"] == "equal"
