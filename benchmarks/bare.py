"""Imported before ntfa, lets it be imported on a machine without safetensors, by benchmarks that save nothing."""

import sys
from importlib.util import find_spec
from unittest.mock import MagicMock

if find_spec("safetensors") is None:
    for name in ("safetensors", "safetensors.torch", "safetensors.numpy"):
        sys.modules[name] = MagicMock()
