"""The number of factors that the data support: errors against brute force, choices against simulated truth."""

from typing import Any

import numpy as np
import pytest

from ntfa import NTFA, Study, simulate
from ntfa.errors import ModelError
from ntfa.estimators.choosing import supported_factors
from ntfa.estimators.sizing import explained, pursued_basis, smallest_sufficient
from ntfa.estimators.trials import Trials, cells_left_out
from ntfa.fitting.dimensions import CellImages, predicted_images


@pytest.fixture(scope="module")
def study() -> Study:
    return simulate("synthetic", n_voxels=600, random_state=1).study


def test_what_factors_explain_is_what_projections_say() -> None:
    random = np.random.default_rng(0)
    most, n_voxels = 4, 60
    basis = random.normal(size=(5 * most, n_voxels))
    recorded, predicted = random.normal(size=(2, 7, n_voxels))
    found = explained(recorded, predicted, basis, most)
    for number in range(1, most + 1):
        own = basis[: 5 * number]
        shown = predicted @ np.linalg.pinv(own) @ own
        expected = (recorded**2).sum(1) - ((recorded - shown) ** 2).sum(1)
        np.testing.assert_allclose(found[number - 1], expected, rtol=1e-9)


def test_a_factor_that_is_there_already_adds_nothing() -> None:
    random = np.random.default_rng(1)
    basis = random.normal(size=(5, 40))
    recorded, predicted = random.normal(size=(2, 3, 40))
    found = explained(recorded, predicted, np.concatenate([basis, basis]), 2)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_the_basis_is_blobs_and_their_derivatives(study: Study) -> None:
    trials = Trials(NTFA("auto"), study)
    basis = pursued_basis(trials.model, trials.small, 3).reshape(3, 5, -1)
    assert basis.shape[-1] == trials.small.n_voxels
    assert (basis[:, 0] > 0).all()
    assert (basis[:, 0] <= 1).all()
    # r^2 / w of a blob follows from its height, and from its three derivatives by place.
    squared = (basis[:, 1:4] ** 2).sum(1) / basis[:, 0] ** 2
    np.testing.assert_allclose(squared, -np.log(basis[:, 0]), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(basis[:, 4], basis[:, 0] * squared, rtol=1e-6)


def test_predictions_do_not_see_what_they_predict(study: Study) -> None:
    cells = CellImages.of(study)
    test = (cells.participant + cells.stimulus) % 4 == 0
    predicted = predicted_images(cells, ~test, test)
    changed = cells.images.copy()
    changed[test] = 7.0
    products = cells.products.copy()
    # Which dimensions and ridge are best is told by the test cells; for one of each there is nothing to tell.
    again = CellImages(cells.participant, cells.stimulus, changed, products, cells.participants, cells.voxels)
    np.testing.assert_array_equal(predicted_images(again, ~test, test), predicted)


@pytest.mark.parametrize(
    ("errors", "number"),
    [
        ([[0.9, 0.9, 0.9], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]], 2),
        ([[0.9, 0.9, 0.9], [0.6, 0.6, 0.6], [0.5, 0.5, 0.5]], 3),
        ([[0.9, 0.9, 0.9], [0.4, 0.6, 0.58], [0.5, 0.5, 0.5]], 2),
        ([[0.503, 0.503, 0.503], [0.5, 0.5, 0.5]], 1),
    ],
)
def test_the_smallest_within_one_standard_error_or_negligibly_worse(errors: Any, number: int) -> None:
    assert smallest_sufficient(np.array(errors)) == number


@pytest.mark.parametrize("seed", [2, 3])
def test_true_numbers_are_found(seed: int) -> None:
    study = simulate("synthetic", n_voxels=500, random_state=seed).study
    found = supported_factors(study)
    assert found is not None
    assert found.n_factors == 3
    rows = {row["n_factors"]: row for row in found.tried}
    assert rows[3]["more"] == 0
    assert rows[1]["more"] > 3 * rows[1]["more_se"] > 0


def test_a_fit_takes_the_number_and_keeps_what_it_was_chosen_by(study: Study, tmp_path: Any) -> None:
    model = NTFA("auto", max_epochs=20, random_state=0, uncertainty="laplace").fit(study)
    assert model.n_factors == "auto"
    assert model.n_factors_ == 3 == model.factors_["factor"].max()
    assert model.predict_weights([(study.participants[0], study.stimuli[0])]).shape == (1, 3)
    model.save(tmp_path / "model")
    again = NTFA.load(tmp_path / "model")
    assert again.n_factors_ == 3
    np.testing.assert_allclose(again.tried_, model.tried_)
    assert not hasattr(NTFA(2, max_epochs=2, random_state=0, uncertainty="laplace").fit(study), "tried_")


def test_where_nothing_can_be_left_out_there_is_a_usual_number(study: Study) -> None:
    alone = study.select(participants=study.participants[:2])
    assert supported_factors(alone) is None
    model = NTFA("auto", max_epochs=2, random_state=0, uncertainty="laplace").fit(alone)
    assert model.n_factors_ == 100


def test_only_ntfa_chooses(study: Study) -> None:
    from ntfa import HTFA

    with pytest.raises(ModelError, match="n_factors='auto'"):
        HTFA("auto").fit(study)  # type: ignore[arg-type]


def test_folds_leave_out_different_cells(study: Study) -> None:
    folds = [cells_left_out(study, fold) for fold in range(4)]
    assert all(fold is not None for fold in folds)
    assert sum(fold.astype(int) for fold in folds if fold is not None).max() == 1
