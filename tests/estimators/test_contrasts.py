"""Contrasts of fitted models: differences of predictions, uncertainty against plain loops, and what is refused."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import naming
from matplotlib.figure import Figure
from scipy import stats

from ntfa import NTFA
from ntfa.errors import ModelError, NotFittedError
from ntfa.estimators.contrasts import TAIL, Contrast
from ntfa.plots import plot_contrast_factors
from ntfa.simulation import Simulation
from ntfa.study.atlas import Atlas

RESPONSES = ("loadings", "network")
Cross = list[tuple[str, str]]


def cross(people: list[str], stimuli: list[str]) -> Cross:
    return [(who, what) for who in people for what in stimuli]


@pytest.fixture(scope="module", params=RESPONSES)
def model(request: pytest.FixtureRequest, clear_simulation: Simulation) -> NTFA:
    settings = {"uncertainty": "laplace", "max_epochs": 120, "device": "cpu", "random_state": 0}
    return NTFA(3, response=request.param, embedding_dim=2, **settings).fit(clear_simulation.study)


@pytest.fixture(scope="module")
def sets(clear_simulation: Simulation) -> tuple[Cross, Cross]:
    """All people with stimuli of the second task, and with those of the first."""
    truth = clear_simulation.truth
    kinds = truth.stimulus_categories
    tasks = [kinds.index[kinds == task].tolist() for task in ("Task 2", "Task 1")]
    return cross(truth.participants, tasks[0]), cross(truth.participants, tasks[1])


@pytest.fixture(scope="module")
def groups(clear_simulation: Simulation) -> tuple[Cross, Cross]:
    truth = clear_simulation.truth
    return cross(truth.participants[:3], truth.stimuli), cross(truth.participants[3:], truth.stimuli)


def test_difference_is_that_of_the_mean_predictions(model: NTFA, sets: tuple[Cross, Cross]) -> None:
    contrast = model.contrast(*sets)
    expected = model.predict(sets[0]).mean(0) - model.predict(sets[1]).mean(0)
    assert np.allclose(contrast.difference, expected, atol=1e-6)
    weights = model.predict_weights(sets[0]).mean() - model.predict_weights(sets[1]).mean()
    found = contrast.factors.set_index("factor")["difference"].sort_index()
    assert np.allclose(found, weights, atol=0.02 * np.abs(weights).max())


def test_true_difference_is_found(model: NTFA, sets: tuple[Cross, Cross], clear_simulation: Simulation) -> None:
    contrast = model.contrast(*sets)
    means = [np.mean([clear_simulation.truth.mean_image(*pair) for pair in pairs], axis=0) for pairs in sets]
    truth = means[0] - means[1]
    assert np.corrcoef(contrast.difference, truth)[0, 1] > 0.8
    assert (contrast.difference[contrast.significant] > 0).all()
    # Networks of two embeddings each are less sure of six people.
    assert model.response_ == "network" or contrast.significant[truth > 0.5 * truth.max()].mean() > 0.8
    assert (np.abs(contrast.difference - truth) <= 1.96 * contrast.sd).mean() > 0.8


def test_sets_the_other_way_round_change_the_sign_alone(model: NTFA, sets: tuple[Cross, Cross]) -> None:
    one, other = model.contrast(*sets), model.contrast(sets[1], sets[0])
    assert np.allclose(one.difference, -other.difference)
    assert np.allclose(one.sd, other.sd)
    assert one.threshold == pytest.approx(other.threshold)


def test_pairs_given_twice_or_as_a_table_count_once(model: NTFA, sets: tuple[Cross, Cross]) -> None:
    table = pd.DataFrame([*sets[0], sets[0][0]], columns=["participant", "stimulus"])
    assert np.array_equal(model.contrast(table, sets[1]).z, model.contrast(*sets).z)


def test_threshold_is_benjamini_and_hochbergs(model: NTFA, groups: tuple[Cross, Cross]) -> None:
    contrast = model.contrast(*groups, alpha=0.01)
    p = 2 * stats.norm.sf(np.abs(contrast.difference / contrast.sd))
    assert np.allclose(contrast.p, p)
    expected = stats.false_discovery_control(p) <= 0.01
    assert np.array_equal(contrast.significant, expected)
    assert contrast.threshold == np.abs(contrast.z[expected]).min()
    assert np.array_equal(contrast.map("thresholded") != 0, expected)
    assert np.allclose(contrast.factors["p_adjusted"], stats.false_discovery_control(contrast.factors["p"]))


def test_nothing_significant_has_an_infinite_threshold(model: NTFA, groups: tuple[Cross, Cross]) -> None:
    assert model.contrast(*groups, alpha=1e-300).threshold == np.inf


def test_population_counts_how_people_differ(model: NTFA, sets: tuple[Cross, Cross]) -> None:
    people = sorted({who for who, _ in sets[0]})
    maps, variances = [], []
    for who in people:
        own = model.contrast(*([pair for pair in pairs if pair[0] == who] for pairs in sets))
        maps.append(own.difference)
        variances.append(own.sd**2)
    whole, n = model.contrast(*sets), len(people)
    between = np.var(maps, axis=0, ddof=1) + (np.sum(variances, axis=0) - n * whole.sd**2) / (n - 1)
    share = np.maximum(between, 0) / n
    total = whole.sd**2 + share
    freedom = np.minimum(total**2 / (share**2 / (n - 1)), 1e6)
    found = model.contrast(*sets, population=True)
    assert np.allclose(found.difference, whole.difference, atol=1e-6)
    assert np.allclose(found.sd, np.sqrt(total), rtol=1e-4)
    assert np.allclose(found.p, 2 * stats.t.sf(np.abs(found.difference) / found.sd, freedom), rtol=1e-3)
    small = np.abs(found.z) < 8
    assert np.allclose(2 * stats.norm.sf(np.abs(found.z[small])), found.p[small], rtol=1e-6)


def test_groups_are_two_samples_of_a_population(model: NTFA, groups: tuple[Cross, Cross]) -> None:
    these, found = model.contrast(*groups), model.contrast(*groups, population=True)
    assert np.allclose(found.difference, these.difference, atol=1e-6)
    assert (found.sd >= these.sd * (1 - 1e-6)).all()
    spread = [np.var([model.predict(own).mean(0) for own in _by_person(pairs)], axis=0, ddof=1) / 3 for pairs in groups]
    # People differ here far more than anything is uncertain about them.
    middle = np.abs(these.difference) > 0.2 * np.abs(these.difference).max()
    assert np.allclose(found.sd[middle], np.sqrt(spread[0] + spread[1])[middle], rtol=0.25)


def _by_person(pairs: Cross) -> list[Cross]:
    return [[pair for pair in pairs if pair[0] == who] for who in dict.fromkeys(who for who, _ in pairs)]


def test_voxels_that_no_factor_reaches_do_not_differ(model: NTFA, sets: tuple[Cross, Cross]) -> None:
    contrast = model.contrast(*sets)
    reach = np.abs(contrast.difference) / np.abs(contrast.difference).max()
    far = reach < 0.1 * TAIL
    assert far.any()
    assert not contrast.significant[far].any()


def test_what_makes_no_contrast_is_refused(model: NTFA, sets: tuple[Cross, Cross], groups: tuple[Cross, Cross]) -> None:
    with pytest.raises(ModelError, match=naming("pairs_b")):
        model.contrast(sets[0], [])
    with pytest.raises(ModelError):
        model.contrast(sets[0], sets[0][::-1])
    with pytest.raises(ModelError, match=naming("alpha", 2)):
        model.contrast(*sets, alpha=2)
    with pytest.raises(Exception, match=naming("sub-99")):
        model.contrast([("sub-99", sets[0][0][1])], sets[1])
    with pytest.raises(ModelError, match=naming("sub-01")):
        model.contrast(cross(["sub-01", "sub-02"], ["task1_stim1"]), groups[1], population=True)
    with pytest.raises(ModelError, match=naming("sub-04")):
        model.contrast(cross(["sub-01", "sub-02", "sub-04"], ["task1_stim1"]), groups[1], population=True)
    with pytest.raises(ModelError, match=naming("fz")):
        model.contrast(*sets).map("fz")
    with pytest.raises(NotFittedError):
        NTFA(3).contrast(*sets)


def test_saved_model_has_the_same_contrasts(model: NTFA, sets: tuple[Cross, Cross], tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    found = NTFA.load(tmp_path / "model").contrast(*sets)
    assert np.allclose(found.z, model.contrast(*sets).z, rtol=1e-5)


def test_image_regions_and_pictures(model: NTFA, sets: tuple[Cross, Cross]) -> None:
    regions = nibabel.Nifti1Image(np.ones((40, 40, 40), dtype=np.int16), np.diag([5.0, 5, 5, 1]) - 100 * _corner())
    contrast = model.contrast(*sets, atlas=Atlas.open(regions, {1: "everywhere"}))
    assert set(contrast.factors["region"]) == {"everywhere"}
    inside = np.asarray(model.mask_img_.dataobj) > 0
    for name in ("difference", "sd", "z", "thresholded"):
        assert np.allclose(contrast.img(name).get_fdata()[inside], contrast.map(name), atol=1e-4)
    assert isinstance(plot_contrast_factors(contrast).get_figure(), Figure)
    assert str(int(contrast.significant.sum())) in repr(contrast)


def _corner() -> Any:
    corner = np.zeros((4, 4))
    corner[:3, 3] = 1
    return corner


@pytest.mark.pictures
def test_maps_are_drawn(model: NTFA, sets: tuple[Cross, Cross]) -> None:
    contrast: Contrast = model.contrast(*sets)
    for name in ("thresholded", "difference", "sd"):
        assert len(contrast.plot(name=name).axes) > 1


def test_model_of_before_is_read_and_contrasted(clear_simulation: Simulation, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    settings = {"uncertainty": "laplace", "max_epochs": 10, "device": "cpu", "random_state": 0}
    model = NTFA(3, response="loadings", embedding_dim=2, **settings).fit(clear_simulation.study)
    model.save(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    del tensors["misfit"]
    save_file(tensors, path)
    truth = clear_simulation.truth
    pairs = [[(truth.participants[0], what)] for what in truth.stimuli[:2]]
    old = NTFA.load(tmp_path / "model").contrast(*pairs)
    assert np.allclose(old.difference, model.contrast(*pairs).difference, atol=1e-5)
    assert (old.sd > 0).all()
