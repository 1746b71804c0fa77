"""Baselines: points for participants and stimuli from PCA and from models of a shared response."""

from ntfa.baselines.base import Baseline
from ntfa.baselines.mnsrm import MNSRM
from ntfa.baselines.pca import PCA
from ntfa.baselines.srm import SRM

BASELINES: dict[str, type[Baseline]] = {"pca": PCA, "srm": SRM, "mn-srm": MNSRM}

__all__ = ["BASELINES", "MNSRM", "PCA", "SRM"]
