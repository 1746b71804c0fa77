"""The atlas that a command is given to name regions by."""

from __future__ import annotations

import argparse

from ntfa.errors import StudyError
from ntfa.study.atlas import Atlas


def atlas_from(args: argparse.Namespace) -> Atlas | None:
    """Open the atlas that `--atlas` and `--atlas-labels` name, if any."""
    image, labels = getattr(args, "atlas", None), getattr(args, "atlas_labels", None)
    if labels and not image:
        raise StudyError(f"--atlas-labels {labels} goes with an image: name it with --atlas")
    return Atlas.open(image, labels) if image else None
