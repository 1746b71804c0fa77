"""Simple models that predict an image for a participant and a stimulus, to set beside NTFA's predictions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ntfa.baselines import AdditiveImage, IndividualLoadings, MeanImage
from ntfa.errors import StudyError
from ntfa.study import Study

logger = logging.getLogger("ntfa")

INDIVIDUAL = "individual loadings"
IMAGE_BASELINES: dict[str, Callable[[], Any]] = {
    "zero": lambda: MeanImage("nothing"),
    "mean image": lambda: MeanImage("study"),
    "stimulus image": lambda: MeanImage("stimulus"),
    "additive image": AdditiveImage,
    INDIVIDUAL: IndividualLoadings,
}
# Those that do not predict the same for every stimulus.
TELLING = ("stimulus image", "additive image", INDIVIDUAL)


def fit_image_baselines(train: Study) -> dict[str, Any]:
    """Fit all of them; one that the design does not allow is left out with a warning."""
    found = {}
    for name, make in IMAGE_BASELINES.items():
        try:
            found[name] = make().fit(train)
        except StudyError as error:
            logger.warning("%s left out: %s", name, error)
    return found
