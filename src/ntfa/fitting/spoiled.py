"""Spoiled frames: which lie too far from a participant's typical frame, and how little to trust them.

A frame's distance is d_t = |y_t - m|^2 over its median u in the participant's frames, m being a typical one of these
(a median of a few). Most frames are alike: let s be the sd of log d_t by those below the median, where no spoiled frame
is. A frame is spoiled if

    log(d_t) > max(log 2, 4 s),    and then counts lambda_t = 1 / d_t^2, where others count one

unless what it shows is a response: what other trials of its stimulus show, the participant's own and everybody else's,
brings it back below, each times a number that fits best.

Given its scale, a frame that is merely noisier would count 1 / d_t, the mean of lambda_t under Student's t for so many
voxels. But what movement adds is one pattern: with 1 / d_t its energy would still be that of the noise in all voxels
together, in a single direction, where factors would follow it. With 1 / d_t^2 its energy is 1 / d_t of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from ntfa.inference.processes import ALONE, Processes
from ntfa.inference.upload import as_tensor
from ntfa.study import Study
from ntfa.study.plausible import FEWEST, N_REFERENCE, some_rows

LEAST = float(np.log(2))
"""Twice the usual variance is never spoiled: what there is to gain is less than what may be lost."""
N_SDS = 4.0
CAUTION = 1.5
"""The limit of newcomers' log d, in units of that of a fit."""
LOWER_SHARE = 0.16
"""Share of a normal distribution that lies more than one sd below its mean."""
SMALLEST_TRUST = 1e-6
PIECE_BYTES = {"cpu": 2 << 20, "cuda": 256 << 20}
"""Frames that are worked on at a time: no more than a processor's cache holds, or a small part of a GPU's memory."""

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class FrameTrust:
    """Of every trial frame, by participant and then trial after trial in order of time.

    distance : [n], root of d_t: how many times as far from the typical frame as is usual
    trust : [n], lambda_t
    """

    distance: Floats
    trust: Floats

    @property
    def counted(self) -> Tensor | None:
        """The trust as inference takes it, None if all frames count one."""
        return None if (self.trust == 1).all() else torch.from_numpy(self.trust)

    def by_participant(self, study: Study) -> dict[str, Floats] | None:
        """The trust in all frames of every participant, one in those of no trial; None if all count one."""
        if (self.trust == 1).all():
            return None
        counts, start = {}, 0
        for label in study.participants:
            rows = _rows(study.trials[study.trials["participant"] == label])
            counts[label] = np.ones(len(study.frames[label]))
            counts[label][rows] = self.trust[start : start + len(rows)]
            start += len(rows)
        return counts

    def gathered(self, processes: Processes, device: torch.device) -> FrameTrust:
        """Return those of all processes."""
        if processes.size == 1:
            return self
        rows = torch.from_numpy(np.stack([self.distance, self.trust], 1)).to(device)
        distance, trust = processes.gather(rows).cpu().numpy().T
        return FrameTrust(distance, trust)


def frame_trust(
    study: Study,
    stimuli: Sequence[str],
    processes: Processes = ALONE,
    device: torch.device | None = None,
    known: Floats | None = None,
) -> FrameTrust:
    """Find out how far each trial frame may be trusted, from these frames alone.

    Parameters
    ----------
    study : Study
        This process's participants.
    stimuli : list of labels
        Those of all processes.
    processes, device : with whom the participants are divided, and where these talk to each other
    known : [n], optional
        Distances, as `FrameTrust` has them, of a fit's frames, which newcomers are then judged by; with more caution,
        because a few people have little to tell a response by.
    """
    people = [_Person(study, label) for label in study.participants]
    distances = np.concatenate([person.log_distance for person in people])
    usual_sd = _lower_sd(processes.gather(torch.from_numpy(distances).to(device or "cpu")).cpu().numpy())
    if known is not None:
        usual_sd = max(usual_sd, _lower_sd(2 * np.log(np.maximum(known, SMALLEST_TRUST))))
    for person in people:
        person.judge(usual_sd, 1.0 if known is None else CAUTION)
    _excuse_responses(people, stimuli, processes, device or torch.device("cpu"))
    return FrameTrust(np.exp(distances / 2), np.concatenate([person.trust for person in people]))


def frame_counts(study: Study, known: Floats | None = None) -> dict[str, Floats] | None:
    """How much each frame of every participant counts, in trials or not; None if all count one."""
    return frame_trust(study, study.stimuli, known=known).by_participant(study)


def _rows(trials: pd.DataFrame) -> Places:
    """Frames of a participant's trials, one trial after another in order of time."""
    spans = trials.sort_values("start", kind="stable")[["start", "stop"]].to_numpy()
    return np.concatenate([np.arange(*span) for span in spans])


def _taken(frames: Tensor, rows: Places) -> Tensor:
    """Rows of frames; where they lie if they follow each other."""
    first, last = int(rows[0]), int(rows[-1])
    in_one_run = last - first + 1 == len(rows)
    return frames[first : last + 1] if in_one_run else frames.index_select(0, torch.from_numpy(rows).to(frames.device))


def _median(rows: Tensor) -> Tensor:
    """Median of every column."""
    ordered, middle = rows.sort(0).values, len(rows) // 2
    return ordered[middle] if len(rows) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _lower_sd(logarithms: Floats) -> float:
    """Sd of numbers, by those below their median."""
    return max(0.0, float(np.median(logarithms) - np.quantile(logarithms, LOWER_SHARE)))


class _Person:
    """A participant's trial frames, in order of time, and how far they are from a typical one."""

    def __init__(self, study: Study, label: str) -> None:
        trials = study.trials[study.trials["participant"] == label].sort_values("start", kind="stable")
        self.frames, self.stimuli = as_tensor(study.frames[label]), trials["stimulus"].astype(str).tolist()
        self.rows = _rows(trials)
        self.trial = np.repeat(np.arange(len(trials)), trials["stop"] - trials["start"])
        reference = _taken(self.frames, self.rows[some_rows(len(self.rows), N_REFERENCE)]).float()
        self.typical = _median(reference)
        seen = study.coverage.get(label)
        self.seen = None if seen is None else torch.from_numpy(seen).to(self.frames.device, torch.float32)
        away = self._squared_distances(float((reference - self.typical).double().square().mean().sqrt()) or 1.0)
        self.usual = float(np.median(away))
        if len(away) < FEWEST or not self.usual > 0:
            self.usual, away = 1.0, np.ones(len(away))
        self.log_distance = np.log(np.maximum(away / self.usual, SMALLEST_TRUST))
        self.spoiled, self.limit = np.zeros(len(away), dtype=bool), LEAST

    def _squared_distances(self, unit: float) -> Floats:
        """|y_t - m|^2 of every frame: of all that is done here, what reads all frames."""
        found, room = [], self.typical.new_empty(0)
        for _, frames in self._pieces(np.arange(len(self.rows))):
            # In one place: memory that is new every time takes longer to get than it takes to work in.
            room = room if len(room) >= len(frames) else torch.empty_like(frames)
            part = torch.sub(frames, self.typical, out=room[: len(frames)])
            # In units of their own: squares of very large or small intensities have no place in float32.
            found.append(part.mul_(1 / unit).square_().sum(1))
        return torch.cat(found).double().cpu().numpy() * unit**2

    def pieces(self, places: Places) -> Iterator[tuple[slice, Tensor]]:
        """Go through trial frames at these places, less the typical one, some [n, V] at a time."""
        return ((piece, frames - self.typical) for piece, frames in self._pieces(places))

    def _pieces(self, places: Places) -> Iterator[tuple[slice, Tensor]]:
        at_once = max(1, PIECE_BYTES[self.frames.device.type] // (4 * self.frames.shape[1]))
        for start in range(0, len(places), at_once):
            piece = slice(start, start + at_once)
            yield piece, _taken(self.frames, self.rows[places[piece]]).float()

    def judge(self, usual_sd: float, caution: float) -> None:
        """Find frames that are too far off, given how those of all participants differ."""
        self.limit = caution * max(LEAST, N_SDS * max(usual_sd, _lower_sd(self.log_distance)))
        self.spoiled = self.log_distance > self.limit

    @property
    def trust(self) -> Floats:
        """How much each frame counts."""
        return np.where(self.spoiled, np.exp(-2 * self.log_distance).clip(SMALLEST_TRUST), 1.0)

    def shown(self, stimulus: str) -> tuple[Tensor, dict[int, Tensor]]:
        """What a stimulus shows in all trials together, and in each that has a spoiled frame."""
        total, doubtful = torch.zeros_like(self.typical), {}
        for i in (i for i, label in enumerate(self.stimuli) if label == stimulus):
            image = self._image(np.flatnonzero(self.trial == i))
            total += image
            if self.spoiled[self.trial == i].any():
                doubtful[i] = image
        return total, doubtful

    def _image(self, places: Places) -> Tensor:
        """Sum of frames, each as if it were no farther off than is usual, in units of that."""
        counts = torch.from_numpy(np.exp(-np.maximum(self.log_distance[places], 0)) / self.usual**0.5).to(self.typical)
        parts = [counts[piece] @ frames for piece, frames in self.pieces(places)]
        return torch.stack(parts).sum(0)

    def excuse(self, trial: int, images: Sequence[Tensor]) -> None:
        """Take back that frames of a trial are spoiled if images explain them; or if there are none, and most are."""
        places = np.flatnonzero(self.spoiled & (self.trial == trial))
        here = images if self.seen is None else [image * self.seen for image in images]
        known = [image.double() for image in here if bool(image.any())]
        if not known:
            self.spoiled[places] = 2 * len(places) <= (self.trial == trial).sum()
            return
        basis = torch.linalg.qr(torch.stack(known, 1)).Q
        for piece, frames in self.pieces(places):
            explained = (frames.double() @ basis).square().sum(1).cpu().numpy() / self.usual
            left = np.exp(self.log_distance[places[piece]]) - explained
            self.spoiled[places[piece]] = left > np.exp(self.limit)


def _excuse_responses(
    people: Sequence[_Person], stimuli: Sequence[str], processes: Processes, device: torch.device
) -> None:
    """Take back that frames are spoiled where other trials of their stimulus show the same."""
    doubted = {person.stimuli[i] for person in people for i in person.trial[person.spoiled]}
    wanted = processes.total(torch.tensor([float(stimulus in doubted) for stimulus in stimuli], device=device))
    for stimulus in (label for label, count in zip(stimuli, wanted.tolist(), strict=True) if count):
        shown = [person.shown(stimulus) for person in people]
        together = torch.stack([total for total, _ in shown]).sum(0)
        everybody = processes.total(together.to(device)).to(together.device)
        for person, (total, doubtful) in zip(people, shown, strict=True):
            for trial, image in doubtful.items():
                person.excuse(trial, [total - image, everybody - total])
