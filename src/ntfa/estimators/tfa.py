"""The estimator of topographic factor analysis; its equations are in `ntfa.models.tfa`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ntfa.estimators.base import TopographicModel
from ntfa.fitting.arrange import Labels, Layout
from ntfa.models.tfa import SeparateFactors


@dataclass(eq=False, repr=False)
class TFA(TopographicModel):
    """Topographic factor analysis: every participant's (or trial's) factors found on their own.

    Parameters
    ----------
    block : {"participant", "trial"}
        Unit that factors are estimated for: every participant, or every trial. Blocks share nothing else either: the
        prior of the weights is estimated for each too, and with "trial" there are no predictions for other trials.

    The other parameters and attributes are those of `NTFA`, but for `embedding_dim`, `uncertainty` and what comes of
    them: there are no embeddings.
    """

    _: KW_ONLY
    block: str = "participant"

    @property
    def _layout(self) -> Layout:
        return Layout(own_factors=self.block, own_weights="trial")

    def _module(self, labels: Labels) -> SeparateFactors:
        return SeparateFactors(len(labels.owners), self._k)
