"""Frames of newcomers, laid out as those of the fit were, by this process's share of the participants."""

from __future__ import annotations

from functools import partial

import numpy as np

from ntfa.estimators.result import Fitted
from ntfa.fitting.arrange import Labels, arrange
from ntfa.fitting.spoiled import frame_trust
from ntfa.fitting.task import current_processes, own_participants
from ntfa.inference.frames import Frames
from ntfa.inference.processes import ALONE, Processes
from ntfa.study import Study


def laid_out(study: Study, labels: Labels, fitted: Fitted, divided: bool = True) -> tuple[Frames, Processes]:
    """Lay out this process's participants, and return with whom results are to be gathered.

    All processes lay out all participants if these are too few to be divided, or are not to be.
    """
    processes = current_processes() if divided else ALONE
    if processes.size > len(study.participants):
        processes = ALONE
    own = study.select(participants=own_participants(study, processes))
    device, on_disk = fitted.module.raw_noise_sd.device, fitted.params.get("memory") is not None
    trust = None
    if fitted.params.get("frames") == "robust":
        known = np.ones(1) if fitted.frames is None else fitted.frames["distance"].to_numpy()
        trust = frame_trust(own, study.stimuli, processes, device, known).counted
    how = partial(arrange, on_disk=on_disk, scales=fitted.noise_scales, trust=trust)
    return how(own, fitted.layout, labels, device, fitted.units).frames, processes
