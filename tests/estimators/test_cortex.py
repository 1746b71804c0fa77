"""Models of cortex: factors on surfaces, recovered along the cortex, and images of the form that the data had."""

from pathlib import Path

import numpy as np
import pytest
from nilearn.surface import SurfaceImage

from ntfa import HTFA, NTFA, TLSA, Study
from ntfa.analyses.residuals import residual_sd
from ntfa.inference.factors import radial_basis
from ntfa.report.expected import expected_of
from ntfa.simulation.cortex import CorticalTruth, simulate_cortex

SETTINGS = {"random_state": 0, "uncertainty": "mean-field", "embedding_dim": (2, 4)}
QUICK = SETTINGS | {"max_epochs": 15, "response": "loadings"}


@pytest.fixture(scope="module")
def small() -> Study:
    return simulate_cortex(4, 6, 2, n_vertices=642)[0]


@pytest.fixture(scope="module")
def fitted(small: Study) -> NTFA:
    return NTFA(4, **QUICK).fit(small)


def recovered(distance: str) -> tuple[NTFA, Study, CorticalTruth]:
    study, truth = simulate_cortex(6, 10, 2, n_vertices=2562, noise=1.5, along="surface", distance=distance)
    return NTFA(4, **SETTINGS, response="loadings", max_epochs=150).fit(study), study, truth


def test_factors_across_a_sulcus_are_recovered_along_the_cortex_better_than_in_a_straight_line() -> None:
    error, images = {}, {}
    for distance in ("sphere", "straight"):
        model, study, truth = recovered(distance)
        error[distance] = truth.distances(model.factors_)
        pairs = [(who, what) for who in study.participants for what in study.stimuli]
        expected = truth.images.reshape(len(pairs), -1)
        images[distance] = ((model.predict(pairs) - expected) ** 2).sum() / (expected**2).sum()
    assert error["sphere"].max() < 3
    assert error["sphere"].mean() < error["straight"].mean()
    assert images["sphere"] < 0.8 * images["straight"]


def test_factors_are_in_mm_on_their_hemisphere(fitted: NTFA, small: Study) -> None:
    table = fitted.factors_
    assert list(table)[:7] == ["participant", "factor", "x", "y", "z", "width", "structure"]
    assert set(table["structure"]) <= {"left cortex", "right cortex"}
    surface = small.mask_img.surfaces.by_side
    for row in table.itertuples():
        points = surface[str(row.structure).split()[0]].midthickness
        assert np.sqrt(((points - [row.x, row.y, row.z]) ** 2).sum(1).min()) < 15
    assert (
        "structure"
        not in NTFA(2, **QUICK).fit(Study.from_arrays(small.frames, small.trials, small.coordinates)).factors_
    )


def test_predictions_and_factors_are_surface_images_of_the_same_values(fitted: NTFA, small: Study) -> None:
    pairs = [("sub-01", "stimulus-02"), ("sub-03", "stimulus-05")]
    image = fitted.predict_img(pairs)
    assert isinstance(image, SurfaceImage)
    values = np.concatenate([image.data.parts["left"], image.data.parts["right"]]).T
    np.testing.assert_allclose(values, fitted.predict(pairs), rtol=1e-6)
    factors = fitted.factor_img("sub-01")
    weights = fitted.predict_weights([pairs[0]]).to_numpy()[0]
    shapes = np.concatenate([factors.data.parts["left"], factors.data.parts["right"]]).T
    detail = fitted._detail_image(0, 1)
    np.testing.assert_allclose(weights @ shapes + (0 if detail is None else detail), values[0], atol=1e-3)
    assert fitted.loading_img().data.shape[0] == small.n_voxels


def test_a_saved_model_predicts_the_same_and_knows_its_surfaces(fitted: NTFA, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    again = NTFA.load(tmp_path / "model")
    pairs = [("sub-02", "stimulus-01")]
    np.testing.assert_allclose(again.predict(pairs), fitted.predict(pairs), rtol=1e-6)
    np.testing.assert_allclose(again.factors_[["x", "y", "z"]], fitted.factors_[["x", "y", "z"]], atol=1e-4)
    assert again.factors_["structure"].tolist() == fitted.factors_["structure"].tolist()
    assert isinstance(again.predict_img(pairs), SurfaceImage)


def test_everything_that_forms_factors_forms_the_same(fitted: NTFA, small: Study) -> None:
    expected = expected_of(fitted)
    images = expected.images(1, [2])
    np.testing.assert_allclose(images[0], fitted.predict([("sub-02", "stimulus-03")])[0], atol=1e-3)
    sds = fitted.predict([("sub-02", "stimulus-03")], return_sd=True)[1]
    assert np.isfinite(sds).all()
    assert residual_sd(fitted, small).mean() == pytest.approx(fitted.noise_, rel=0.2)
    own = fitted._factors[fitted._factors["participant"] == "sub-01"]
    shapes = radial_basis(small.mask_img.positions, own[["x", "y", "z"]].to_numpy(), own["width"].to_numpy())
    np.testing.assert_allclose(expected.radial(0, expected.positions), shapes)
    contrast = fitted.contrast([("sub-01", "stimulus-01")], [("sub-01", "stimulus-02")])
    assert isinstance(contrast.img("z"), SurfaceImage)


@pytest.mark.parametrize("kind", [HTFA, TLSA])
def test_other_models_live_on_the_surface_too(kind: type, small: Study) -> None:
    model = kind(4, random_state=0, max_epochs=5).fit(small)
    assert set(model.template_["structure"]) <= {"left cortex", "right cortex"}
    assert np.isfinite(expected_of(model).images(0, [0])).all()
    assert residual_sd(model, small).shape == (small.n_voxels,)


def test_the_response_can_be_chosen_and_halves_calibrate(small: Study) -> None:
    model = NTFA(3, random_state=0, max_epochs=10, uncertainty="calibrated").fit(small)
    assert model.response_ in ("loadings", "network")
    assert np.isfinite(model.participants_).all().all()


def test_newcomers_are_added_on_the_same_surfaces(small: Study) -> None:
    model = NTFA(2, **QUICK).fit(small.select(participants=["sub-01", "sub-02", "sub-03"]))
    more = model.add(small.select(participants=["sub-04"]))
    assert "sub-04" in more.participants_.index
    assert set(more.factors_["structure"]) <= {"left cortex", "right cortex"}
    assert isinstance(more.predict_img([("sub-04", "stimulus-01")]), SurfaceImage)
