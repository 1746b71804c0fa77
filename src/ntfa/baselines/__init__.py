"""Baselines: points for participants and stimuli from PCA, models of a shared response and individual loadings."""

from ntfa.baselines.additive import AdditiveImage
from ntfa.baselines.base import Baseline
from ntfa.baselines.individual import IndividualLoadings
from ntfa.baselines.mean_image import MeanImage
from ntfa.baselines.mnsrm import MNSRM
from ntfa.baselines.pca import PCA
from ntfa.baselines.srm import SRM

BASELINES: dict[str, type[Baseline]] = {
    "pca": PCA,
    "srm": SRM,
    "mn-srm": MNSRM,
    "individual loadings": IndividualLoadings,
}

__all__ = ["BASELINES", "MNSRM", "PCA", "SRM", "AdditiveImage", "IndividualLoadings", "MeanImage"]
