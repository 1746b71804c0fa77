"""What opens in an image viewer: factors and predictions as NIfTI, and loadings of stimuli as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.images import save_image, to_image
from ntfa.files.reading import refuse_links
from ntfa.report.expected import Expected, expected_of
from ntfa.report.files import safe_file_name


def write_images(
    model: TopographicModel, folder: Path, *, everything: bool = False, expected: Expected | None = None
) -> None:
    """Write `factors.nii.gz`, the group's factors, a volume each, and `loadings_stimuli.tsv`.

    Of a study with cortical surfaces images are dense CIFTI (`factors.dscalar.nii`) or pairs of GIFTI files.
    Without a mask image there are no images; where weights do not depend on the stimulus there are no loadings.

    Parameters
    ----------
    everything : bool
        Also write `factors/PARTICIPANT.nii.gz`, and `predictions/PARTICIPANT.nii.gz` with one volume per stimulus, in
        the order of `predictions/volumes.tsv`; `predictions.nii.gz` is their average over participants.
    expected : Expected, optional
        What `expected_of` makes of the model, if it is known already.
    """
    expected = expected_of(model) if expected is None else expected
    refuse_links(folder)
    if expected.by_stimulus and expected.weights is not None:
        loadings_of_stimuli(expected).to_csv(folder / "loadings_stimuli.tsv", sep="\t", index=False)
    if model.mask_img_ is None:
        if everything:
            raise ModelError("the study has no mask image, so factors and predictions cannot be written as images")
        return
    _save(model.factor_img(), folder, "factors")
    if everything and expected.own_factors:
        _write_factors(model, expected, folder / "factors")
    if everything and expected.weights is not None:
        _write_predictions(model, expected, folder / "predictions")


def loadings_of_stimuli(expected: Expected) -> pd.DataFrame:
    """Weight that the model expects of every factor for every stimulus.

    `stimulus, factor, weight, sd`: the average over all participants, and the standard deviation between them.
    """
    assert expected.weights is not None
    n_factors = expected.weights.shape[2]
    table = pd.DataFrame(
        {
            "stimulus": np.repeat(expected.stimuli, n_factors),
            "factor": np.tile(np.arange(1, n_factors + 1), len(expected.stimuli)),
        }
    )
    return table.assign(weight=expected.weights.mean(0).ravel(), sd=expected.weights.std(0).ravel())


def _write_factors(model: TopographicModel, expected: Expected, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    files = [_save(model.factor_img(who), folder, safe_file_name(who)) for who in expected.participants]
    _write_names(expected.participants, files, folder / "participants.tsv")


def _write_predictions(model: TopographicModel, expected: Expected, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    total: Any = 0
    files = []
    for participant in expected.participants:
        images = model.predict([(participant, stimulus) for stimulus in expected.stimuli])
        total = total + images / len(expected.participants)
        image = to_image(images, model.mask_img_, expected.stimuli)
        files.append(_save(image, folder, safe_file_name(participant)))
    _save(to_image(total, model.mask_img_, expected.stimuli), folder.parent, "predictions")
    _write_names(expected.participants, files, folder / "participants.tsv")
    volumes = pd.DataFrame({"volume": range(1, len(expected.stimuli) + 1), "stimulus": expected.stimuli})
    volumes.to_csv(folder / "volumes.tsv", sep="\t", index=False)


def _write_names(participants: list[str], files: list[str], path: Path) -> None:
    pd.DataFrame({"participant": participants, "file": files}).to_csv(path, sep="\t", index=False)


def _save(image: Any, folder: Path, name: str) -> str:
    """Write an image and return its file's name: NIfTI as 16-bit numbers and their scale, the others as they are.

    Numbers are then good to one part in 32,767 of the largest, and zero stays zero.
    """
    if not hasattr(image, "affine"):
        return save_image(image, folder, name)
    import nibabel

    values = np.asarray(image.dataobj)
    slope = float(np.abs(values).max()) / np.iinfo(np.int16).max or 1.0
    scaled = nibabel.Nifti1Image(np.rint(values / slope).astype(np.int16), image.affine)
    scaled.header.set_slope_inter(slope, 0)
    return save_image(scaled, folder, name)
