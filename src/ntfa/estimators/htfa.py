"""The estimator of hierarchical topographic factor analysis; its equations are in `ntfa.models.htfa`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.result import Fitted
from ntfa.estimators.tables import factor_table
from ntfa.fitting.arrange import Labels, Layout
from ntfa.models.htfa import TemplateFactors
from ntfa.study.greyordinates import factors_in_mm


@dataclass(eq=False, repr=False)
class HTFA(TopographicModel):
    """Hierarchical topographic factor analysis: one template of factors, every block's own around it.

    Parameters
    ----------
    block : {"participant", "trial"}
        Unit that factors are estimated for: every participant, or every trial, as in the comparison of the paper. With
        "trial", other trials have the factors of the template; a trial is recognised by its frames, not their numbers.

    The other parameters and attributes are those of `NTFA`, but for `embedding_dim`, `uncertainty` and what comes of
    them: there are no embeddings.

    Attributes
    ----------
    template_ : DataFrame
        `factor, x, y, z, width` in mm, each number with its `_sd`.
    """

    _: KW_ONLY
    block: str = "participant"

    @property
    def _layout(self) -> Layout:
        return Layout(own_factors=self.block, own_weights="trial")

    def _module(self, labels: Labels) -> TemplateFactors:
        return TemplateFactors(len(labels.owners), self._k)

    def _set_fitted_attributes(self, fitted: Fitted) -> None:
        super()._set_fitted_attributes(fitted)
        module = fitted.module
        assert isinstance(module, TemplateFactors)
        self._template = factor_table(module.template_centers, module.template_log_widths, fitted.units)
        self.template_ = factors_in_mm(self._template, fitted.mask_img)
