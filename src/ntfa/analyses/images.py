"""Predicted images beside recorded ones: how alike they are, and which of them to show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ntfa.study import Study

SHOWN = 3


def mean_image(study: Study) -> NDArray[np.float64]:
    """Average all trial frames of a study, [V], at each voxel those of participants who have it; NaN if nobody has."""
    lengths = (study.trials["stop"] - study.trials["start"]).to_numpy(dtype=np.float64)
    images = study.mean_images()
    if not study.coverage:
        return lengths / lengths.sum() @ images
    counts = lengths @ np.isfinite(images)
    return np.asarray(np.where(counts > 0, lengths @ np.nan_to_num(images) / np.maximum(counts, 1), np.nan))


def image_correlations(observed: NDArray[np.floating], predicted: NDArray[np.floating]) -> NDArray[np.float64]:
    """Correlation over voxels of each pair of images, [n]; 0 for an image that is the same everywhere."""
    one, other = (images.astype(np.float64) - images.mean(1, keepdims=True) for images in (observed, predicted))
    size = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    product = (one * other).sum(1)
    return np.divide(product, size, out=np.zeros_like(product), where=size > 0)


def typical(correlations: NDArray[np.floating]) -> list[int]:
    """Return which images are at the quartiles of the correlation, best first: not the best, nor chosen by eye."""
    order = np.argsort(-np.asarray(correlations), kind="stable")
    wanted = np.linspace(0.25, 0.75, SHOWN) * max(len(order) - 1, 0)
    return [int(order[place]) for place in sorted({round(place) for place in wanted})] if len(order) else []
