"""What the report shows is what the model predicts."""

import base64
import io
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest
from matplotlib.path import Path as Outline
from PIL import Image

from ntfa import NTFA, TFA, Study
from ntfa.analyses.images import typical
from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.plots.brains import Space
from ntfa.report.brain import Grid, outlines, png
from ntfa.report.expected import expected_of
from ntfa.report.files import safe_file_name
from ntfa.report.images import loadings_of_stimuli, write_images
from ntfa.report.maps import as_page_data, predicted_maps
from ntfa.simulation import simulate


def test_expected_images_are_those_of_predict(
    collapsed_kind: object, fitted: Callable[[object], TopographicModel], study: Study
) -> None:
    model = fitted(collapsed_kind)
    expected = expected_of(model)
    for i in (0, 3):
        pairs = [(expected.participants[i], stimulus) for stimulus in expected.stimuli]
        images = expected.images(i, list(range(len(pairs))))
        np.testing.assert_allclose(images, model.predict(pairs), atol=1e-4)


def test_a_model_of_single_trials_expects_nothing(study: Study) -> None:
    model = TFA(n_factors=2, block="trial", max_epochs=2, random_state=0).fit(study)
    expected = expected_of(model)
    assert expected.weights is None
    assert predicted_maps(expected, model.coordinates_) is None
    mean = model.factors_.groupby("factor")[["x", "y", "z", "width"]].mean()
    np.testing.assert_allclose(expected.mean_factors, mean)


def test_outlines_hold_all_voxels(study: Study) -> None:
    for outline in outlines(study.coordinates):
        flat = study.coordinates[:, [outline.across, outline.up]]
        rings = [
            np.array([[float(number) for number in point.split()] for point in ring.rstrip("Z").split("L")])
            for ring in outline.path.split("M")[1:]
        ]
        held = np.any([Outline(ring * [1, -1]).contains_points(flat, radius=0.5) for ring in rings], axis=0)
        assert held.mean() > 0.97
        left, bottom, right, top = outline.box
        assert (flat > [left, bottom]).all()
        assert (flat < [right, top]).all()
        area = sum(abs((ring[:-1, 0] * ring[1:, 1] - ring[1:, 0] * ring[:-1, 1]).sum() / 2) for ring in rings)
        assert area < 1.6 * np.prod(np.ptp(flat, axis=0))


@pytest.mark.parametrize("coordinates", [np.zeros((1, 3)), np.array([[0.0, 0, 0], [10, 0, 0]])])
def test_one_or_two_voxels_have_outlines(coordinates: np.ndarray) -> None:
    assert len(outlines(coordinates)) == 3
    assert len(Grid.of(coordinates).places) == len(coordinates)


def test_small_maps_show_the_strongest_value_behind_each_place() -> None:
    grid = np.stack(np.meshgrid(np.arange(6), np.arange(5), np.arange(4), indexing="ij"), -1).reshape(-1, 3) * 3.0
    values = np.random.default_rng(0).normal(size=len(grid))
    shown = Grid.of(grid).projections(values)
    volume = values.reshape(6, 5, 4)
    strongest = [np.take_along_axis(volume, np.abs(volume).argmax(a, keepdims=True), a).squeeze(a) for a in range(3)]
    # Three views side by side, each with a margin: sagittal, coronal, axial; up is up.
    assert shown.shape == (5, 5 + 6 + 6 + 6)
    np.testing.assert_array_equal(shown[:4, 1:6], strongest[0].T[::-1])
    np.testing.assert_array_equal(shown[:4, 8:14], strongest[1].T[::-1])
    np.testing.assert_array_equal(shown[:, 16:22], strongest[2].T[::-1])


def test_colours_are_red_above_and_blue_below_zero() -> None:
    picture = Image.open(io.BytesIO(png(np.array([[1.0, -1.0, 0.0, np.nan, 9.0]]), limit=1.0))).convert("RGBA")
    red, blue, white, nothing, beyond = (picture.getpixel((i, 0)) for i in range(5))
    assert red[0] > 80 > red[2]
    assert blue[2] > 80 > blue[0]
    assert min(white[:3]) > 240
    assert nothing[3] == 0
    assert beyond == red


def test_maps_of_some_are_evenly_chosen(made_up_study: Callable, made_up_model: Callable) -> None:
    model = made_up_model(made_up_study(9, 4))
    maps = predicted_maps(expected_of(model), model.coordinates_)
    assert maps is not None
    assert sorted(maps.pictures("participant", 5)) == [0, 2, 4, 6, 8]
    assert sorted(maps.pictures("stimulus", 5)) == [0, 1, 2, 3]


@pytest.mark.parametrize("response", ["loadings", "network"])
def test_maps_are_averages_of_what_is_predicted(study: Study, response: str) -> None:
    """Every voxel has a cube of its own here, so that nothing is lost by gathering them."""
    model = NTFA(n_factors=3, max_epochs=15, random_state=0, response=response, uncertainty="laplace").fit(study)
    expected = expected_of(model)
    tables = {"participant": model.participants_, "stimulus": model.stimuli_}
    maps = predicted_maps(expected, model.coordinates_, tables)
    assert maps is not None
    assert maps.grid.n == len(model.coordinates_)
    for i, participant in enumerate(expected.participants):
        wanted = model.predict([(participant, stimulus) for stimulus in expected.stimuli]).mean(0)
        np.testing.assert_allclose(maps.participant[i][maps.grid.owner], wanted, atol=1e-3 * np.abs(wanted).max())
    wanted = model.predict([(participant, expected.stimuli[1]) for participant in expected.participants]).mean(0)
    np.testing.assert_allclose(maps.stimulus[1][maps.grid.owner], wanted, atol=1e-3 * np.abs(wanted).max())


def test_slopes_say_how_maps_change_with_embeddings(study: Study) -> None:
    model = NTFA(n_factors=3, max_epochs=15, random_state=0, response="network", uncertainty="laplace").fit(study)
    maps = predicted_maps(expected_of(model), model.coordinates_, {"participant": model.participants_})
    assert maps is not None
    z = model.participants_[["z1", "z2"]].to_numpy()
    found = np.stack([maps.participant[i] for i in range(len(z))])
    design = np.column_stack([np.ones(len(z)), z])
    wanted = np.linalg.lstsq(design, found, rcond=None)[0][1:]
    np.testing.assert_allclose(maps.slopes["participant"], wanted, atol=1e-8)
    assert predicted_maps(expected_of(model), model.coordinates_).slopes == {}


def test_maps_come_back_from_the_page(model: NTFA) -> None:
    maps = predicted_maps(expected_of(model), model.coordinates_)
    data = as_page_data(maps, Space(model.coordinates_))
    assert maps is not None
    assert data is not None
    shape = tuple(data["shape"])
    inside = np.unpackbits(np.frombuffer(base64.b64decode(data["inside"]), np.uint8))[: np.prod(shape)].astype(bool)
    packed = data["maps"]["participant"][2]
    values = np.frombuffer(base64.b64decode(packed["values"]), np.int8) * packed["scale"] / 127
    volume = np.full(shape, np.nan)
    volume[inside.reshape(shape)] = values
    np.testing.assert_allclose(volume[tuple(maps.grid.cells.T)], maps.participant[2], atol=packed["scale"] / 127)
    places = np.array(data["origin"]) + data["size"] * maps.grid.cells
    assert np.abs(places - maps.grid.places).max() <= data["size"]


def test_many_maps_have_larger_cubes_or_are_left_out(
    made_up_study: Callable, made_up_model: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made_up_model(made_up_study(9, 4, n_voxels=2000))
    expected = expected_of(model)
    all_of_them = predicted_maps(expected, model.coordinates_)
    assert all_of_them is not None
    monkeypatch.setattr("ntfa.report.maps.MOST_BYTES", 6000)
    monkeypatch.setattr("ntfa.report.maps.LEAST_CELLS", 15)
    some = predicted_maps(expected, model.coordinates_)
    assert some is not None
    assert some.grid.size > all_of_them.grid.size
    assert 0 < len(some.participant) < 9
    assert some.grid.n * (len(some.participant) + len(some.stimulus)) <= 6000


def test_typical_pairs_are_at_the_quartiles() -> None:
    correlations = np.linspace(0, 1, 9)
    assert correlations[typical(correlations)].tolist() == [0.75, 0.5, 0.25]
    assert typical(correlations[:1]) == [0]
    assert typical(correlations[:0]) == []


# --- images


@pytest.fixture(scope="module")
def with_mask() -> NTFA:
    study = simulate("synthetic", n_participants=3, n_stimuli=4, n_frames=2, n_voxels=200, random_state=0).study
    trials = study.trials.assign(participant=study.trials["participant"].replace({"sub-01": "../a/<b>"}))
    frames = {"../a/<b>" if p == "sub-01" else p: array for p, array in study.frames.items()}
    renamed = Study.from_arrays(frames, trials, study.coordinates, study.mask_img)
    return NTFA(n_factors=2, max_epochs=3, random_state=0).fit(renamed)


def test_group_factors_are_written_as_an_image(with_mask: NTFA, tmp_path: Path) -> None:
    write_images(with_mask, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"factors.nii.gz", "loadings_stimuli.tsv"}
    image, wanted = nibabel.load(tmp_path / "factors.nii.gz"), with_mask.factor_img()
    assert image.shape == wanted.shape
    np.testing.assert_allclose(image.affine, wanted.affine, rtol=1e-6)
    np.testing.assert_allclose(image.get_fdata(), wanted.get_fdata(), atol=1e-4)
    outside = with_mask.mask_img_.get_fdata() == 0
    assert (image.get_fdata()[outside] == 0).all()


def test_everything_is_written_on_request_under_plain_names(with_mask: NTFA, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_images(with_mask, out, everything=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    names = pd.read_csv(out / "predictions" / "participants.tsv", sep="\t").set_index("participant")["file"]
    assert names["../a/<b>"] == f"{safe_file_name('../a/<b>')}.nii.gz"
    volumes = pd.read_csv(out / "predictions" / "volumes.tsv", sep="\t")["stimulus"].tolist()
    inside = with_mask.mask_img_.get_fdata() > 0
    total = 0
    for participant, name in names.items():
        wanted = with_mask.predict([(participant, stimulus) for stimulus in volumes])
        total = total + wanted / len(names)
        found = nibabel.load(out / "predictions" / name).get_fdata()[inside].T
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
        own = nibabel.load(out / "factors" / name).get_fdata()
        np.testing.assert_allclose(own, with_mask.factor_img(participant).get_fdata(), atol=1e-4)
    mean = nibabel.load(out / "predictions.nii.gz").get_fdata()[inside].T
    np.testing.assert_allclose(mean, total, atol=1e-4 * np.abs(total).max())


def test_loadings_are_averages_over_participants(model: NTFA, study: Study) -> None:
    expected = expected_of(model)
    table = loadings_of_stimuli(expected)
    assert table.columns.tolist() == ["stimulus", "factor", "weight", "sd"]
    row = table[(table["stimulus"] == study.stimuli[1]) & (table["factor"] == 3)].iloc[0]
    assert expected.weights is not None
    own = expected.weights[:, 1, 2]
    assert row["weight"] == pytest.approx(own.mean())
    assert row["sd"] == pytest.approx(own.std())


def test_without_a_mask_there_are_no_images(made_up_study: Callable, made_up_model: Callable, tmp_path: Path) -> None:
    model = made_up_model(made_up_study(3, 3))
    write_images(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["loadings_stimuli.tsv"]
    with pytest.raises(ModelError, match="mask"):
        write_images(model, tmp_path, everything=True)
