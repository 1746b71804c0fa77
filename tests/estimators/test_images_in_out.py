"""Images in and out of the estimators: lists of runs make a study, and maps come back in its space."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import naming, radial_basis

from ntfa import NTFA, Study
from ntfa.errors import ModelError, NotFittedError, StudyError
from ntfa.estimators.base import TopographicModel

SHAPE = (7, 8, 6)
AFFINE = np.array([[-6.0, 0, 0, 20], [0, 6, 0, -22], [0, 0, 5, -14], [0, 0, 0, 1]])
WHO = ["ann", "ann", "bob", "cleo"]
OPTIONS: dict[str, Any] = {"rest": "rest", "delay": 2.0}


def scan(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    volumes = rng.uniform(800, 1200, (*SHAPE, 1)) + 10 * rng.standard_normal((*SHAPE, 30))
    img = nibabel.Nifti1Image(volumes.astype(np.float32), AFFINE)
    img.header.set_zooms((6, 6, 5, 2.0))
    return img


@pytest.fixture(scope="module")
def imgs() -> list[Any]:
    return [scan(seed) for seed in range(4)]


@pytest.fixture(scope="module")
def events() -> list[pd.DataFrame]:
    rows = [(0, 16, "rest"), (16, 10, "a"), (26, 10, "b"), (36, 20, "rest")]
    return [pd.DataFrame(rows, columns=["onset", "duration", "trial_type"])] * 4


@pytest.fixture(scope="module")
def mask() -> Any:
    inside = np.random.default_rng(0).random(SHAPE) < 0.7
    return nibabel.Nifti1Image(inside.astype(np.uint8), AFFINE)


@pytest.fixture(scope="module")
def imaged(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> Study:
    return Study.from_images(imgs, events, WHO, mask, **OPTIONS)


@pytest.fixture(scope="module")
def model(imaged: Study) -> NTFA:
    return small().fit(imaged)


def small() -> NTFA:
    return NTFA(n_factors=3, max_epochs=8, device="cpu", random_state=0)


def at_voxels(img: Any, mask: Any) -> np.ndarray:
    """Volumes of an image at the mask's voxels [n, V], and nothing anywhere else."""
    assert isinstance(img, nibabel.Nifti1Image)
    np.testing.assert_array_equal(img.affine, mask.affine)
    inside = np.asarray(mask.dataobj) > 0
    assert img.shape[:3] == inside.shape
    data = img.get_fdata()
    assert not data[~inside].any()
    return data[inside].T


# --- in


def test_images_and_events_are_fitted_like_the_study_made_of_them(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any, model: NTFA, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{i}.nii.gz" for i in range(4)]
    for path, img in zip(paths, imgs, strict=True):
        img.to_filename(path)
    for runs in (imgs, tuple(paths)):
        same = small().fit(runs, events=events, participants=WHO, mask=mask, **OPTIONS)
        pd.testing.assert_frame_equal(same.participants_, model.participants_)
        pd.testing.assert_frame_equal(same.stimuli_, model.stimuli_)
        pd.testing.assert_frame_equal(same.factors_, model.factors_)
        np.testing.assert_array_equal(same.coordinates_, model.coordinates_)
    assert model.participants_.index.tolist() == ["ann", "bob", "cleo"]


def test_fit_says_what_it_takes(imgs: list[Any], events: list[pd.DataFrame], imaged: Study) -> None:
    with pytest.raises(ModelError, match="events="):
        small().fit(imgs)
    for wrong in ("bold.nii.gz", imgs[0], None):
        with pytest.raises(ModelError, match=naming(type(wrong).__name__)):
            small().fit(wrong, events=events)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=naming("events", "t_r")):
        small().fit(imaged, events=events, t_r=2.0)
    with pytest.raises(StudyError, match=naming("events", 4)):
        small().fit(imgs, events=events[:1])


# --- out


def test_predictions_are_images_in_the_studys_space(model: NTFA, mask: Any) -> None:
    pairs = [("ann", "a"), ("cleo", "b"), ("bob", "a")]
    img = model.predict_img(pairs)
    assert img.shape == (*SHAPE, 3)
    np.testing.assert_allclose(at_voxels(img, mask), model.predict(pairs), rtol=1e-6, atol=1e-7)
    table = pd.DataFrame(pairs, columns=["participant", "stimulus"])
    np.testing.assert_array_equal(model.predict_img(table).get_fdata(), img.get_fdata())


def test_factors_are_images_in_the_studys_space(model: NTFA, mask: Any, imaged: Study) -> None:
    own = model.factors_[model.factors_["participant"] == "bob"]
    mean = model.factors_.groupby("factor")[["x", "y", "z", "width"]].mean()
    for img, table in ((model.factor_img("bob"), own), (model.factor_img(), mean)):
        assert img.shape == (*SHAPE, 3)
        expected = radial_basis(
            torch.from_numpy(imaged.coordinates),
            torch.from_numpy(table[["x", "y", "z"]].to_numpy()),
            torch.from_numpy(2 * np.log(table["width"].to_numpy())),
        )
        np.testing.assert_allclose(at_voxels(img, mask), expected.numpy(), atol=1e-6)


def test_a_factor_is_highest_at_its_own_place(model: NTFA, mask: Any) -> None:
    """The axes are not mixed up: one of them is flipped, and none has as many voxels as another."""
    volumes = at_voxels(model.factor_img("ann"), mask)
    places = np.argwhere(np.asarray(mask.dataobj)) @ AFFINE[:3, :3].T + AFFINE[:3, 3]
    own = model.factors_[model.factors_["participant"] == "ann"][["x", "y", "z"]].to_numpy()
    nearest = np.linalg.norm(places[None] - own[:, None], axis=-1).argmin(1)
    assert volumes.argmax(1).tolist() == nearest.tolist()


def test_images_survive_saving(model: NTFA, tmp_path: Path, mask: Any) -> None:
    model.save(tmp_path / "model")
    again = NTFA.load(tmp_path / "model")
    pairs = [("ann", "a"), ("bob", "b")]
    np.testing.assert_allclose(again.predict_img(pairs).get_fdata(), model.predict_img(pairs).get_fdata(), rtol=1e-6)
    np.testing.assert_allclose(at_voxels(again.factor_img(), mask), at_voxels(model.factor_img(), mask), rtol=1e-6)


def test_images_open_again_from_disk(model: NTFA, tmp_path: Path) -> None:
    img = model.predict_img([("ann", "a")])
    img.to_filename(tmp_path / "map.nii.gz")
    np.testing.assert_allclose(nibabel.load(tmp_path / "map.nii.gz").get_fdata(), img.get_fdata(), rtol=1e-6)


def test_every_model_gives_images(collapsed_kind: Any, imaged: Study, mask: Any) -> None:
    model: TopographicModel = collapsed_kind.make(max_epochs=2).fit(imaged)
    assert at_voxels(model.factor_img("cleo"), mask).shape == (3, imaged.n_voxels)
    pairs = [("ann", "a"), ("cleo", "b")]
    np.testing.assert_allclose(at_voxels(model.predict_img(pairs), mask), model.predict(pairs), rtol=1e-5, atol=1e-6)


def test_unknown_labels_are_named(model: NTFA) -> None:
    with pytest.raises((ModelError, StudyError), match="dora"):
        model.factor_img("dora")
    with pytest.raises((ModelError, StudyError), match="dora"):
        model.predict_img([("dora", "a")])


def test_without_a_space_there_are_no_images(imaged: Study) -> None:
    model = small().fit(Study.from_arrays(imaged.frames, imaged.trials, imaged.coordinates))
    for call in (lambda: model.predict_img([("ann", "a")]), model.factor_img):
        with pytest.raises(ModelError, match=naming("mask_img")):
            call()
    with pytest.raises(NotFittedError):
        small().factor_img()
    with pytest.raises(NotFittedError):
        small().predict_img([("ann", "a")])
