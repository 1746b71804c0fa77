"""The paper's whole evaluation on one study: every part writes its tables and figures into a folder of its own."""

from ntfa.comparison.run import PARTS, compare
from ntfa.comparison.settings import Settings

__all__ = ["PARTS", "Settings", "compare"]
