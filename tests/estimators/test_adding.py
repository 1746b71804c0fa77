"""Newcomers added to a fitted model: they come to lie where they belong, and nobody else moves."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import naming

from ntfa import NTFA, Study, difference, simulate
from ntfa.errors import ModelError, NotFittedError, StudyError
from ntfa.estimators.trials import image_errors
from ntfa.uncertainty.moments import moments
from ntfa.uncertainty.newcomers import aligned

SETTINGS: dict[str, dict[str, Any]] = {
    "loadings": {"n_factors": 8, "response": "loadings", "embedding_dim": (2, 3)},
    "network": {"n_factors": 3, "response": "network", "embedding_dim": 2},
}


@pytest.fixture(scope="module", params=list(SETTINGS))
def response(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def study(response: str) -> Study:
    """Two runs of twelve people who saw eight stimuli; in the synthetic one they are of three kinds, in turn."""
    sizes = {"n_participants": 12, "n_stimuli": 8, "n_voxels": 500, "n_runs": 2}
    if response == "network":
        return simulate("synthetic", random_state=0, n_frames=5, noise=0.5, **sizes).study
    # People differ in few ways, so that two fits agree on their axes.
    return simulate("mdtb", random_state=0, n_factors=40, individual_decay=0.2, individual_share=0.2, **sizes).study


@pytest.fixture(scope="module")
def new_people(study: Study) -> list[str]:
    """One of each kind."""
    return study.participants[1::4]


@pytest.fixture(scope="module")
def new_stimuli(study: Study) -> list[str]:
    return study.stimuli[2::4]


@pytest.fixture(scope="module")
def reference_study(study: Study, new_people: list[str], new_stimuli: list[str]) -> Study:
    is_new = study.trials["participant"].isin(new_people) | study.trials["stimulus"].isin(new_stimuli)
    return study.select(trials=~is_new)


@pytest.fixture(scope="module")
def reference(response: str, reference_study: Study) -> NTFA:
    return NTFA(random_state=0, **SETTINGS[response]).fit(reference_study)


@pytest.fixture(scope="module")
def people(study: Study, reference: NTFA, new_people: list[str]) -> Study:
    """New people who saw known stimuli, but not all of them."""
    own = study.select(participants=new_people, stimuli=reference.stimuli_.index.tolist())
    return own.select(trials=~own.trials["stimulus"].isin(reference.stimuli_.index[:2]))


@pytest.fixture(scope="module")
def with_people(reference: NTFA, people: Study) -> NTFA:
    return reference.add(people)


@pytest.fixture(scope="module")
def with_both(reference: NTFA, study: Study, new_people: list[str], new_stimuli: list[str]) -> NTFA:
    """New people who saw known and new stimuli, and known people who saw the new ones."""
    is_new = study.trials["participant"].isin(new_people) | study.trials["stimulus"].isin(new_stimuli)
    return reference.add(study.select(trials=is_new))


def assert_known_unchanged(added: NTFA, reference: NTFA, study: Study) -> None:
    for name in ("participants_", "stimuli_"):
        before = getattr(reference, name)
        after = getattr(added, name).loc[before.index, list(before)]
        pd.testing.assert_frame_equal(after, before, check_exact=True)
    pairs = study.trials[["participant", "stimulus"]].drop_duplicates().head(5)
    for ours, theirs in zip(
        added.predict(pairs, return_sd=True), reference.predict(pairs, return_sd=True), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    # Draws for more rows are the same numbers, but vector units may round the last bit of another row.
    pd.testing.assert_frame_equal(added.transform(study), reference.transform(study), rtol=1e-9, atol=1e-12)
    assert added.score(study, n_samples=3) == pytest.approx(reference.score(study, n_samples=3), rel=1e-12)


def test_known_points_keep_their_bits(
    reference: NTFA, with_people: NTFA, with_both: NTFA, reference_study: Study
) -> None:
    for added in (with_people, with_both):
        assert_known_unchanged(added, reference, reference_study)
    assert "added" not in reference.participants_


def test_newcomers_are_last_and_marked(with_both: NTFA, new_people: list[str], new_stimuli: list[str]) -> None:
    for table, new in ((with_both.participants_, new_people), (with_both.stimuli_, new_stimuli)):
        assert table.index[table["added"]].tolist() == new == table.index[-len(new) :].tolist()
    assert with_both.newcomers_["label"].tolist() == [*new_people, *new_stimuli]
    assert with_both.newcomers_["n_trials"].tolist()[0] == 16


def in_space_of(model: NTFA, added: NTFA, name: str, new: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Places of newcomers when added and when fitted in, in the space of the fit that has them in."""
    ours, theirs = getattr(added, name), getattr(model, name)
    both = [label for label in ours.index if label not in new]
    placed = aligned(moments(ours.loc[both])[0], moments(theirs.loc[both])[0], moments(ours.loc[new])[0])
    return placed, moments(theirs.loc[new])[0]


def test_people_come_near_to_where_they_are_when_fitted_in(
    response: str, study: Study, reference: NTFA, with_people: NTFA, new_people: list[str]
) -> None:
    known = study.select(stimuli=reference.stimuli_.index.tolist())
    is_new = known.trials["participant"].isin(new_people)
    unseen = is_new & known.trials["stimulus"].isin(reference.stimuli_.index[:2])
    model = NTFA(random_state=0, uncertainty="laplace", **SETTINGS[response]).fit(known.select(trials=~unseen))
    added, fitted = in_space_of(model, with_people, "participants_", new_people)
    spread = moments(model.participants_)[0].std(0).mean()
    assert np.sqrt(((added - fitted) ** 2).mean()) < 0.6 * spread
    ours, theirs = (image_errors(one.predict, known.select(trials=unseen)).mean() for one in (with_people, model))
    assert ours < theirs + 0.03


def test_stimuli_come_near_to_where_they_are_when_fitted_in(
    response: str, study: Study, reference: NTFA, new_stimuli: list[str]
) -> None:
    known = study.select(participants=reference.participants_.index.tolist())
    unseen = known.trials["stimulus"].isin(new_stimuli) & known.trials["participant"].isin(known.participants[::3])
    model = NTFA(random_state=0, uncertainty="laplace", **SETTINGS[response]).fit(known.select(trials=~unseen))
    added = reference.add(known.select(trials=known.trials["stimulus"].isin(new_stimuli) & ~unseen))
    placed, fitted = in_space_of(model, added, "stimuli_", new_stimuli)
    spread = moments(model.stimuli_)[0].std(0).mean()
    assert np.sqrt(((placed - fitted) ** 2).mean()) < spread
    ours, theirs = (image_errors(one.predict, known.select(trials=unseen)).mean() for one in (added, model))
    assert ours < theirs + 0.08


def test_the_very_people_of_the_fit_get_their_places_back(
    response: str, reference: NTFA, reference_study: Study
) -> None:
    some = reference.participants_.index[:3].tolist()
    added = reference.add(reference_study.select(participants=some), session="again")
    ours = added.participants_.loc[[f"{label} again" for label in some]]
    first, again = moments(added.participants_.loc[some]), moments(ours)
    if response == "loadings":
        np.testing.assert_allclose(again[0], first[0], atol=1e-8)
        np.testing.assert_array_less(first[1][:, 0, 0], again[1][:, 0, 0] * 1.2)
    assert (np.abs(again[0] - first[0]) < 1.5 * np.sqrt(np.diagonal(first[1], axis1=1, axis2=2))).all()
    assert added.retests_["participant"].tolist() == some
    assert (added.retests_["p"] > 0.05).all()


def test_order_does_not_matter(reference: NTFA, people: Study, with_people: NTFA) -> None:
    shuffled = Study(people.coordinates, people.trials.sample(frac=1, random_state=1), people.frames, people.mask_img)
    pd.testing.assert_frame_equal(reference.add(shuffled).participants_, with_people.participants_)


def test_one_by_one_is_as_good_as_all_at_once(
    response: str, reference: NTFA, people: Study, with_people: NTFA, new_people: list[str]
) -> None:
    model = reference
    for label in new_people:
        model = model.add(people.select(participants=label))
    assert model.participants_.index.tolist() == with_people.participants_.index.tolist()
    if response == "loadings":
        z = ["z1", "z2"]
        np.testing.assert_allclose(model.participants_[z], with_people.participants_[z], atol=1e-5)
        pairs = [(new_people[-1], reference.stimuli_.index[0])]
        np.testing.assert_allclose(model.predict(pairs), with_people.predict(pairs), atol=1e-4)


def test_results_of_newcomers_are_to_be_had(with_both: NTFA, study: Study, new_people: list[str]) -> None:
    own = study.select(participants=new_people)
    assert with_both.transform(own).notna().all(axis=None)
    assert np.isfinite(with_both.score(own, n_samples=3))
    assert 0 <= difference(with_both.participants_, *new_people[:2]).p <= 1
    images, sds = with_both.predict(own.trials.head(3), return_sd=True)
    assert np.isfinite(images).all()
    assert (sds > 0).all()
    assert with_both.factors_["participant"].nunique() == 12


def test_newcomers_are_saved_and_loaded(with_both: NTFA, study: Study, tmp_path: Path) -> None:
    with_both.save(tmp_path / "model")
    loaded = NTFA.load(tmp_path / "model")
    for name in ("participants_", "stimuli_", "newcomers_", "retests_", "factors_", "calibration_"):
        pd.testing.assert_frame_equal(getattr(loaded, name), getattr(with_both, name), check_exact=True)
    pairs = study.trials[["participant", "stimulus"]].drop_duplicates()
    np.testing.assert_array_equal(loaded.predict(pairs), with_both.predict(pairs))
    assert loaded.score(study, n_samples=2) == with_both.score(study, n_samples=2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda newcomers: newcomers.update(n_fitted=[2, 6]),
        lambda newcomers: newcomers["records"].pop(),
        lambda newcomers: newcomers["records"][0].update(label="sub-99"),
        lambda newcomers: newcomers["records"][0].update(p_data="rare"),
        lambda newcomers: newcomers["records"][0].update(session_of="sub-99"),
        lambda newcomers: newcomers.pop("records"),
    ],
)
def test_records_that_make_no_sense_are_refused(with_people: NTFA, tmp_path: Path, damage: Any) -> None:
    with_people.save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    damage(config["newcomers"])
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError):
        NTFA.load(tmp_path / "model")


def test_data_of_another_kind_are_said_to_be_outside(
    reference: NTFA, people: Study, with_people: NTFA, new_people: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert not with_people.participants_["outside"].any()
    frames = {label: array * (8 if label == new_people[0] else 1) for label, array in people.frames.items()}
    strange = Study.from_arrays(frames, people.trials, people.coordinates, people.mask_img)
    with caplog.at_level(logging.WARNING):
        added = reference.add(strange)
    assert added.participants_.index[added.participants_["outside"]].tolist() == [new_people[0]]
    assert new_people[0] in caplog.text


def test_who_has_fewer_trials_is_less_certain(reference: NTFA, people: Study, new_people: list[str]) -> None:
    first_run = people.trials["run"] == people.trials["run"].min()
    few = (people.trials["participant"] != new_people[0]) | first_run
    areas = [
        np.linalg.det(moments(reference.add(one).participants_.loc[new_people])[1])
        for one in (people, people.select(trials=few))
    ]
    assert areas[1][0] > areas[0][0]


def test_a_single_trial_is_enough_to_be_added(
    reference: NTFA, study: Study, new_people: list[str], new_stimuli: list[str]
) -> None:
    own = study.select(participants=new_people[0], stimuli=[new_stimuli[0]])
    added = reference.add(own.select(trials=np.arange(own.n_trials) == 0))
    for table in (added.participants_, added.stimuli_):
        assert np.isfinite(moments(table)[1]).all()
        assert table["added"].sum() == 1
    ellipses = np.linalg.det(moments(added.participants_)[1])
    assert ellipses[-1] > ellipses[:-1].mean()


# Sessions --------------------------------------------------------------------------------------------------------


def test_known_people_need_a_session(reference: NTFA, reference_study: Study) -> None:
    known = reference.participants_.index[0]
    again = reference_study.select(participants=known)
    with pytest.raises(ModelError, match=naming(known, "session")):
        reference.add(again)
    named = Study.from_arrays(again.frames, again.trials.assign(session="ses-02"), again.coordinates, again.mask_img)
    added = reference.add(named)
    assert added.newcomers_[["label", "session_of"]].to_numpy().tolist() == [[f"{known} ses-02", known]]
    with pytest.raises(ModelError, match=naming(f"{known} ses-02")):
        added.add(named)
    with pytest.raises(ModelError, match="session"):
        reference.add(again, session=" ")


def test_people_who_saw_new_stimuli_only_are_themselves(reference: NTFA, study: Study, new_stimuli: list[str]) -> None:
    known = reference.participants_.index.tolist()
    own = study.select(participants=known, stimuli=new_stimuli)
    labelled = Study.from_arrays(own.frames, own.trials.assign(session="ses-02"), own.coordinates, own.mask_img)
    assert reference.add(labelled).participants_.index.tolist() == known
    named = reference.add(own, session="ses-02").participants_
    assert named.index[named["added"]].tolist() == [f"{label} ses-02" for label in known]


# What is refused -------------------------------------------------------------------------------------------------


def test_other_voxels_are_refused(reference: NTFA, people: Study) -> None:
    fewer = {label: array[:, 1:] for label, array in people.frames.items()}
    with pytest.raises(StudyError, match=naming(499, 500)):
        reference.add(Study.from_arrays(fewer, people.trials, people.coordinates[1:]))
    with pytest.raises(StudyError, match=naming(500)):
        reference.add(Study.from_arrays(people.frames, people.trials, people.coordinates + 1))


def test_nothing_new_is_refused_and_so_is_an_unfitted_model(
    reference: NTFA, reference_study: Study, people: Study, with_people: NTFA
) -> None:
    with pytest.raises(ModelError):
        with_people.add(people)
    with pytest.raises(NotFittedError):
        NTFA().add(people)


def test_a_model_that_knows_no_densities_says_so(
    reference: NTFA, people: Study, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference._fitted.module, "density", None)
    with caplog.at_level(logging.WARNING):
        added = reference.add(people)
    assert added.newcomers_["p_data"].isna().all()
    assert "not known" in caplog.text


# Grids -----------------------------------------------------------------------------------------------------------


def on_grid(side_mm: float, n_side: int) -> Any:
    affine = np.diag([side_mm, side_mm, side_mm, 1.0])
    affine[:3, 3] = -side_mm * (n_side - 1) / 2
    return nibabel.Nifti1Image(np.ones((n_side,) * 3, dtype=np.uint8), affine)


def blob_study(mask: Any, participants: list[str]) -> Study:
    """Everybody's responses are smooth blobs, so that they are the same on every grid."""
    places = nibabel.affines.apply_affine(mask.affine, np.argwhere(mask.get_fdata() > 0))
    rng = np.random.default_rng(0)
    maps = np.exp(-((places[None] - rng.uniform(-12, 12, (4, 1, 3))) ** 2).sum(-1) / 300)
    frames, trials = {}, []
    for participant in participants:
        own = np.random.default_rng(int(participant[-2:]))
        weights = 2 * own.normal(size=(1, 4)) + 2 * rng.normal(size=(12, 4))
        frames[participant] = (weights @ maps).astype(np.float32)
        trials += [(participant, f"s{i % 4}", f"run-{i // 4}", i, i + 1) for i in range(12)]
    table = pd.DataFrame(trials, columns=["participant", "stimulus", "run", "start", "stop"])
    return Study.from_arrays(frames, table, places, mask)


def test_another_grid_is_resampled_only_if_asked() -> None:
    mask, people = on_grid(5.0, 8), [f"sub-{i:02d}" for i in range(8)]
    known, finer = blob_study(mask, people), on_grid(4.0, 12)
    settings: dict[str, Any] = {"n_factors": 4, "response": "loadings", "embedding_dim": (2, 2)}
    model = NTFA(random_state=0, uncertainty="laplace", **settings).fit(known.select(participants=people[:6]))
    new = blob_study(finer, people).select(participants=people[6:])
    with pytest.raises(StudyError, match=naming("resample")):
        model.add(new)
    ours, theirs = model.add(new, resample=True), model.add(known.select(participants=people[6:]))
    np.testing.assert_allclose(ours.participants_["z1"], theirs.participants_["z1"], atol=0.1)
    with pytest.raises(StudyError, match="outside"):
        model.add(blob_study(on_grid(4.0, 6), people).select(participants=people[6:]), resample=True)
