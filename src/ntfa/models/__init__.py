"""The topographic models, each in one file that reads like its equations."""

from ntfa.models.base import TopographicModel
from ntfa.models.htfa import HTFA
from ntfa.models.ntfa import NTFA
from ntfa.models.tfa import TFA
from ntfa.models.tlsa import TLSA

MODELS: dict[str, type[TopographicModel]] = {"ntfa": NTFA, "htfa": HTFA, "tfa": TFA, "tlsa": TLSA}

__all__ = ["HTFA", "MODELS", "NTFA", "TFA", "TLSA"]
