"""How a model shows itself: in a notebook, as figures, as a report."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ntfa.contract import StudyEstimator
from ntfa.study import Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ntfa.estimators.base import TopographicModel
    from ntfa.report.page import Report

# Figures and reports are layers above models; nothing is imported from there unless it is asked for.


class ShowsItself(StudyEstimator):
    """Figures and pages of a fitted model; each method does what the function of `ntfa.plots` of that name does."""

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """Give notebooks a line of text and a small summary; text alone where scikit-learn is set to that."""
        from sklearn import get_config

        shown = {"text/plain": repr(self)}
        return shown | {"text/html": self._repr_html_()} if get_config()["display"] == "diagram" else shown

    def _repr_html_(self) -> str:
        """Summarise what is set and, of a fitted model, what came out."""
        from ntfa.report.notebook import summary_card

        return summary_card(cast("TopographicModel", self))

    @property
    def _shown(self) -> TopographicModel:
        self._require_fitted()
        return cast("TopographicModel", self)

    def plot_embeddings(
        self, groups: pd.Series | str | None = None, *, kind: str = "participant", **options: Any
    ) -> Axes:
        """Draw embeddings of participants or stimuli with what is uncertain about them: `ntfa.plots.plot_embeddings`.

        Parameters
        ----------
        groups : Series or str, optional
            What to colour by; or the name of a column of the trials, with `study=`.
        kind : {"participant", "stimulus"}
        """
        from ntfa.plots import plot_embeddings

        return plot_embeddings(self._shown, groups, kind=kind, **options)

    def plot_factors(self, participants: str | Sequence[str] | None = None, **options: Any) -> Sequence[Axes]:
        """Draw factors on three views of the brain: `ntfa.plots.plot_factors`.

        Parameters
        ----------
        participants : label or labels, optional
            Whose factors to show; by default the average of all.
        """
        from ntfa.plots import plot_factors

        return plot_factors(self._shown, participants=participants, **options)

    def plot_bound(self, **options: Any) -> Axes:
        """Draw the bound over the fit, which is flat at the end if it converged: `ntfa.plots.plot_bound`."""
        from ntfa.plots import plot_bound

        return plot_bound(self._shown, **options)

    def plot_choice(self, **options: Any) -> Axes:
        """Draw the errors by which `n_factors="auto"` chose the number of factors: `ntfa.plots.plot_choice`."""
        from ntfa.plots import plot_choice

        return plot_choice(self._shown, **options)

    def plot_prediction(self, study: Study, participant: str, stimulus: str, **options: Any) -> Figure:
        """Draw the predicted image of a pair under the recorded one: `ntfa.plots.plot_prediction`.

        Parameters
        ----------
        study : Study
            Where the pair was recorded, best held out from the fit.
        """
        from ntfa.plots import plot_prediction

        return plot_prediction(self._shown, study, participant, stimulus, **options)

    def plot_weights(self, study: Study, trial: Hashable, **options: Any) -> Axes:
        """Draw weights of factors over the frames of one trial, a row of `study.trials`: `ntfa.plots.plot_weights`."""
        from ntfa.plots import plot_weights

        return plot_weights(self._shown, study, trial, **options)

    def plot_noise(self, study: Study, **options: Any) -> Figure:
        """Draw where in the brain the model leaves most unexplained: `ntfa.plots.plot_noise`."""
        from ntfa.plots import plot_noise

        return plot_noise(self._shown, study, **options)

    def plot_frames(self, participants: Sequence[str] | None = None, **options: Any) -> Figure:
        """Draw how much each frame counted, beside framewise displacement: `ntfa.plots.plot_frames`."""
        from ntfa.plots import plot_frames

        return plot_frames(self._shown, participants, **options)

    def plot_connectivity(self, study: Study, **options: Any) -> Axes:
        """Draw correlations between the weights of factors: `ntfa.plots.plot_connectivity`."""
        from ntfa.plots import plot_connectivity

        return plot_connectivity(self._shown, study, **options)

    def show_embeddings(self, study: Study | None = None, *, kind: str | None = None, atlas: Any = None) -> Report:
        """Show embeddings to point at, select, compare and search, inside a notebook and without widgets.

        It is the picture of the report by itself: `save_as_html` and `open_in_browser` work outside of notebooks.

        Parameters
        ----------
        study : Study, optional
            What the model was fitted to: gives labels to colour by.
        kind : {"participant", "stimulus"}, optional
            Which embeddings to show; by default both.
        atlas : as for `generate_report`, optional
        """
        from ntfa.report.notebook import show_embeddings

        return show_embeddings(self._shown, study, kind, atlas)

    def generate_report(
        self, study: Study | None = None, held_out: Study | None = None, *, atlas: Any = None
    ) -> Report:
        """Make a report, one HTML page, to save with `save_as_html`, to open in a browser or to show in a notebook.

        Parameters
        ----------
        study : Study, optional
            What the model was fitted to: gives labels to colour by, and data to compare with.
        held_out : Study, optional
            Trials that the model was not fitted to; predictions are then compared with these.
        atlas : `ntfa.study.atlas.Atlas`, image, or (image, labels), optional
            Names the regions of factors and of places: an image of labels in the space of the study, and a table with
            columns `index` and `name`, which may lie beside the image under the same name.
        """
        from ntfa.report.build import generate_report

        return generate_report(self._shown, study, held_out, atlas)
