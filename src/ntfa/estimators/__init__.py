"""The estimators: the generative models with the face of scikit-learn."""

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.htfa import HTFA
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.tfa import TFA
from ntfa.estimators.tlsa import TLSA

MODELS: dict[str, type[TopographicModel]] = {"ntfa": NTFA, "htfa": HTFA, "tfa": TFA, "tlsa": TLSA}

__all__ = ["HTFA", "MODELS", "NTFA", "TFA", "TLSA"]
