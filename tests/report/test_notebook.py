"""What a model shows of itself in a notebook."""

import copy
import json
from collections.abc import Callable
from html import unescape

import numpy as np
import pandas as pd
import pytest
import sklearn
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ntfa import HTFA, NTFA, Study
from ntfa.errors import ModelError, NotFittedError

HOSTILE = "</script><img src=x onerror=alert(1)>"


def test_an_unfitted_model_shows_its_settings(page: type) -> None:
    shown = page(NTFA(n_factors=7, device="cpu")._repr_html_()).text
    assert "NTFA" in shown
    assert "n_factors" in shown
    assert "7" in shown


def test_a_fitted_model_shows_what_it_was_fitted_to(model: NTFA, study: Study, page: type) -> None:
    shown = page(model._repr_html_()).text
    for count in (len(study.participants), len(study.stimuli), study.n_trials, study.n_voxels, 3):
        assert f"{count:,}" in shown
    for about in ("Participants", "Stimuli", "Fit"):
        assert about in shown
    changed = copy.copy(model).set_params(n_factors=97)
    assert "97" not in page(changed._repr_html_()).text


def test_what_is_set_cannot_be_taken_for_markup(page: type) -> None:
    assert not page(NTFA(device=HOSTILE)._repr_html_()).all("img")


def test_notebooks_get_text_and_a_summary(model: NTFA) -> None:
    shown = model._repr_mimebundle_()
    assert shown["text/plain"] == repr(model)
    assert shown["text/html"] == model._repr_html_()
    with sklearn.config_context(display="text"):
        assert set(model._repr_mimebundle_()) == {"text/plain"}


# --- figures


def test_figures_are_drawn_by_the_model(model: NTFA, study: Study) -> None:
    groups = pd.Series(["a", "b"] * len(study.participants), dtype=str)[: len(study.participants)]
    groups.index = pd.Index(study.participants)
    ax = model.plot_embeddings(groups, title="people")
    assert ax.get_title() == "people"
    assert model.plot_embeddings(kind="stimulus").figure is not ax.figure
    assert len(model.plot_factors()) == 3
    steps = model.plot_bound().lines[0].get_xdata()
    np.testing.assert_array_equal(steps, model.history_["step"])
    pair = study.trials.iloc[0]
    assert isinstance(model.plot_prediction(study, pair["participant"], pair["stimulus"]), Figure)
    assert isinstance(model.plot_weights(study, study.trials.index[0], factors=[2]), Axes)
    assert isinstance(model.plot_noise(study), Figure)
    assert isinstance(model.plot_connectivity(study), Axes)


@pytest.mark.parametrize("method", ["plot_embeddings", "plot_factors", "plot_bound", "show_embeddings"])
def test_nothing_is_drawn_before_a_fit(method: str) -> None:
    with pytest.raises(NotFittedError):
        getattr(NTFA(), method)()


# --- embeddings to point at


def test_embeddings_are_a_page_of_their_own(model: NTFA, study: Study, page: type) -> None:
    shown = model.show_embeddings(study, kind="stimulus")
    parsed = page(shown.html)
    plots = [attributes["data-plot"] for attributes in parsed.all("section")]
    assert plots == ["stimulus"]
    data = json.loads(parsed.data)
    assert data["kinds"]["stimulus"]["labels"] == model.stimuli_.index.tolist()
    points = np.array(data["kinds"]["stimulus"]["planes"][0]["points"])
    np.testing.assert_allclose(points[:, 0], model.stimuli_["z1"], atol=1e-5)
    assert data["kinds"]["stimulus"]["columns"] == ["category"]
    assert len(shown.html) < 400_000
    assert unescape(shown._repr_html_()).count(shown.html) == 1
    both = page(model.show_embeddings().html)
    assert [attributes["data-plot"] for attributes in both.all("section")] == ["participant", "stimulus"]


def test_models_without_embeddings_and_other_kinds_are_refused(study: Study, model: NTFA) -> None:
    with pytest.raises(ModelError, match="HTFA"):
        HTFA(n_factors=2, max_epochs=1, random_state=0).fit(study).show_embeddings()
    with pytest.raises(ModelError, match="people"):
        model.show_embeddings(kind="people")


def test_hostile_labels_stay_text(made_up_study: Callable[..., Study], page: type) -> None:
    study = made_up_study(3, 3)
    trials = study.trials.assign(stimulus=study.trials["stimulus"].replace({"stim-001": HOSTILE}))
    evil = Study.from_arrays(dict(study.frames), trials, study.coordinates)
    model = NTFA(n_factors=2, max_epochs=1, init="kmeans", random_state=0, uncertainty="laplace").fit(evil)
    parsed = page(model.show_embeddings(evil).html)
    assert not parsed.all("img")
    assert HOSTILE in json.loads(parsed.data)["kinds"]["stimulus"]["labels"]
