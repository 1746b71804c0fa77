"""What a fit of NTFA found, as attributes: loadings, covariance of weights, calibration, shares of the axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.images import to_image
from ntfa.estimators.individual import loading_maps, loading_table, weights_covariance_table
from ntfa.models.loadings import LoadingFactors
from ntfa.models.ntfa import NeuralFactors


class LoadingResults(TopographicModel):
    """Tables and maps that follow from a fitted NTFA; those of loadings are missing where it has networks."""

    @property
    def loadings_(self) -> pd.DataFrame:
        """How much each participant's factors respond to the constant, and to each of the model's own axes of stimuli.

        `participant, feature, factor, loading, loading_sd`. Individual loadings only.
        """
        module, fitted = self._loading_factors("loadings_"), self._fitted
        return loading_table(module, fitted.labels.participants, fitted.units)

    @property
    def weights_covariance_(self) -> pd.DataFrame:
        """Covariance of the factors' weights from frame to frame around their mean: functional connectivity.

        One row and one column per factor. Individual loadings only.
        """
        return weights_covariance_table(self._loading_factors("weights_covariance_"), self._fitted.units)

    def _loading_factors(self, attribute: str) -> LoadingFactors:
        module = self._require_fitted().module
        if not isinstance(module, LoadingFactors):
            raise AttributeError(f"{attribute}: the fit has networks, not individual loadings")
        return module

    @property
    def calibration_(self) -> pd.DataFrame:
        """How the uncertainty of the embeddings was found, one row for participants and one for stimuli.

        `reliability`: share of the variance between embeddings that is not noise, by halves of each one's trials.
        `variance_inflation`: by how much the variances the fit itself gives were multiplied, on average. `n_halved`:
        how many had enough trials to be split. All missing where that was not asked for, or where too few could be
        halved.
        """
        module = self._require_fitted().module
        assert isinstance(module, NeuralFactors | LoadingFactors)
        columns = ["reliability", "variance_inflation", "n_halved"]
        table = pd.DataFrame(module.calibration.cpu().numpy(), ["participants", "stimuli"], columns)
        return table.where(table["n_halved"] > 0)

    @property
    def shares_(self) -> pd.DataFrame:
        """Share of the variance of responses that each axis of the embeddings holds; missing for networks.

        One row for participants and one for stimuli, one column per axis. Shares are of all that people, or stimuli,
        differ in, as far as the model knows it; those of participants need not add up to one.
        """
        module = self._require_fitted().module
        rows = {"participants": len(self._axes("participants_")), "stimuli": len(self._axes("stimuli_"))}
        columns = [f"z{i + 1}" for i in range(max(rows.values()))]
        table = pd.DataFrame(np.nan, list(rows), columns)
        if isinstance(module, LoadingFactors):
            shares = (module.embeddings.participant_shares, module.embeddings.stimulus_shares)
            for row, share in zip(rows, shares, strict=True):
                table.loc[row, columns[: len(share)]] = share.cpu().numpy()
        return table

    def _axes(self, attribute: str) -> list[str]:
        return [name for name in getattr(self, attribute) if name[1:].isdigit()]

    def loading_img(self, participant: str | None = None) -> Any:
        """Maps of loadings as a 4-D Nifti image: what a stimulus' features are multiplied by to give its image.

        The first volume is the response to an average stimulus, the others what a step of one along each of the model's
        own axes of the stimuli adds. Individual loadings only.

        Parameters
        ----------
        participant : label, optional
            Whose maps; by default the group's.
        """
        fitted = self._require_fitted()
        return to_image(loading_maps(fitted, participant), fitted.mask_img)
