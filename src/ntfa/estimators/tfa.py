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
        What has factors of its own: every participant, or every trial. Blocks share nothing else either, so that
        the prior of the weights is a block's own too, and with "trial" nothing can be said of other trials.

    The other parameters and attributes are those of `NTFA`; there are no embeddings.
    """

    _: KW_ONLY
    block: str = "participant"

    @property
    def _layout(self) -> Layout:
        return Layout(own_factors=self.block, own_weights="trial")

    def _module(self, labels: Labels) -> SeparateFactors:
        return SeparateFactors(len(labels.owners), self.n_factors)
