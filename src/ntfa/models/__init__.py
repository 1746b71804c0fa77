"""The topographic models, each in one file that reads like its equations."""

from ntfa.models.htfa import HTFA
from ntfa.models.ntfa import NTFA
from ntfa.models.tfa import TFA

MODELS = {"ntfa": NTFA, "htfa": HTFA, "tfa": TFA}

__all__ = ["HTFA", "MODELS", "NTFA", "TFA"]
