"""How many factors? The fewest that predict left-out cells as well as any number does.

Matching pursuit finds factors one after another, those that explain most first, so that one pursuit serves all numbers.
Images of left-out cells are predicted from the other cells (`ntfa.fitting.dimensions`), and what the first K factors
can show of a prediction is compared with the recorded image. Each factor brings its derivatives by place and width:
people whose factor lies a little elsewhere need no second one. With an orthonormal basis in the order of the pursuit,
errors of all K are sums of squares, and all of it takes seconds.

What counts is images. The log predictive density would choose ever more factors wherever noise is smooth, since they
describe noise as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ntfa.estimators.trials import TRIAL_FOLDS, Trials, cells_left_out
from ntfa.fitting.dimensions import CellImages, predictable, predicted_images
from ntfa.fitting.task import Task, current_processes
from ntfa.inference.start import pursuit_factors
from ntfa.study import Study

if TYPE_CHECKING:
    from ntfa.estimators.ntfa import NTFA

USUAL_FACTORS, FEWEST_FACTORS = 100, 2
"""How many there are where there is nothing to choose by, the most that are tried; and the fewest that are chosen."""
VOXELS_PER_FACTOR = 10
NEGLIGIBLE = 0.01
"""Share of what the best number explains that may be given up for fewer factors."""
DEGENERATE = 1e-3
"""A column of the basis of which less than this is new adds nothing."""
N_SHOWN = 24
"""Numbers of which errors are kept to be shown."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sizing:
    """A number of factors, and what it was chosen by.

    tried : one row per number: `n_factors`; `error` of left-out images, relative to predicting zero; `more`, how much
        more it is than that of the chosen number, and its standard error `more_se`, over participants and folds
    """

    n_factors: int
    tried: list[dict[str, Any]]

    @property
    def reason(self) -> str:
        """Say why, in a sentence for the report."""
        rows = {row["n_factors"]: row for row in self.tried}
        own, best = rows[self.n_factors], min(self.tried, key=lambda row: float(row["error"]))
        compared = "" if best is own else f", and {best['error']:.3f} with {best['n_factors']}"
        return (
            "the fewest that predict images of pairs left out of a reduced version of the study as well as any number "
            f"up to {max(rows)} (squared error relative to predicting zero: {own['error']:.3f}{compared})"
        )


def choose_n_factors(trials: Trials) -> Sizing:
    """Choose the number of factors, by all folds of the cells."""
    most = max(1, min(USUAL_FACTORS, trials.small.n_voxels // VOXELS_PER_FACTOR))
    found = [fold_errors(trials, fold, most) for fold in range(TRIAL_FOLDS)]
    errors = np.concatenate([own for own in found if own is not None], 1)
    chosen = min(max(smallest_sufficient(errors), FEWEST_FACTORS), len(errors))
    return Sizing(chosen, _rows(errors, chosen))


def fold_errors(trials: Trials, fold: int, most: int) -> Floats | None:
    """Squared errors of images of a fold over that of predicting zero, [most, P]; None if none can be predicted."""
    small = trials.small
    left_out = cells_left_out(small, fold)
    if left_out is None:
        return None
    cells = trials.cells
    test = _cells_of(small, left_out, cells)
    train = ~test
    test &= predictable(cells, train)
    if not test.any():
        return None
    predicted, recorded = predicted_images(cells, train, test), cells.images[test].astype(np.float64)
    basis = pursued_basis(trials.model, small.split(left_out)[0], most)[:, cells.voxels]
    saved = explained(recorded, predicted, basis, most)
    who = cells.participant[test]
    people = np.unique(who)
    energy = np.array([(recorded[who == one] ** 2).sum() for one in people])
    gained = np.stack([saved[:, who == one].sum(1) for one in people], 1)
    return 1 - gained[:, energy > 0] / energy[energy > 0]


def _cells_of(study: Study, left_out: Any, cells: CellImages) -> NDArray[np.bool_]:
    """Which cells have trials that are left out: all trials of a pair are, or none."""
    pairs = study.trials[left_out][["participant", "stimulus"]].drop_duplicates()
    people = {label: i for i, label in enumerate(cells.participants)}
    stimuli = {label: i for i, label in enumerate(study.stimuli)}
    wanted = {(people[p], stimuli[s]) for p, s in pairs.itertuples(index=False) if p in people}
    return np.array([pair in wanted for pair in zip(cells.participant.tolist(), cells.stimulus.tolist(), strict=True)])


def pursued_basis(model: NTFA, study: Study, most: int) -> Floats:
    """Factors in the order in which pursuit finds them, each with its derivatives by place and width, [5 most, V]."""
    like_this = model._like_this(n_factors=most, response="network", embedding_dim=1, coarse="never", memory=None)
    task: Task = like_this._task(study, like_this._labels(study))
    centers, log_widths = pursuit_factors(task.frames, most, 0, 0, current_processes())
    positions = task.frames.coordinates.double().cpu().numpy()[: study.n_voxels]
    widths = log_widths.double().exp().cpu().numpy()[:, None]
    apart = positions - centers.double().cpu().numpy()[:, None]
    squared = (apart**2).sum(-1) / widths
    blobs = np.exp(-squared)
    along = [blobs * apart[..., axis] / np.sqrt(widths) for axis in range(3)]
    return np.stack([blobs, *along, blobs * squared], 1).reshape(-1, len(positions))


def explained(recorded: Floats, predicted: Floats, basis: Floats, most: int) -> Floats:
    """By how much less squared error the first K factors show of predictions leave than zero does, [most, cells]."""
    orthonormal, upper = np.linalg.qr(basis.T)
    new = np.abs(upper.diagonal()) > DEGENERATE * np.linalg.norm(basis, axis=1)
    orthonormal = orthonormal * new
    found, expected = recorded @ orthonormal, predicted @ orthonormal
    by_factor = (2 * found * expected - expected**2).reshape(len(recorded), most, -1).sum(-1)
    return by_factor.cumsum(1).T


def smallest_sufficient(errors: Floats) -> int:
    """Return the smallest number within one standard error of the best, or negligibly worse; errors are [K, n]."""
    best = errors[int(errors.mean(1).argmin())]
    worse, standard_error = _more(errors, best)
    allowed = np.maximum(standard_error, NEGLIGIBLE * max(0.0, 1 - float(best.mean())))
    return int(np.flatnonzero(worse <= allowed)[0]) + 1


def _more(errors: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Mean difference from another number's errors, and its standard error."""
    apart = errors - other
    n = apart.shape[1]
    return apart.mean(1), apart.std(1, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(len(apart))


def _rows(errors: Floats, chosen: int) -> list[dict[str, Any]]:
    more, standard_error = _more(errors, errors[chosen - 1])
    return [
        {
            "n_factors": number,
            "error": float(errors[number - 1].mean()),
            "more": float(more[number - 1]),
            "more_se": float(standard_error[number - 1]),
        }
        for number in _shown(len(errors), (chosen, int(errors.mean(1).argmin()) + 1))
    ]


def _shown(most: int, always: Sequence[int]) -> list[int]:
    """Numbers up to the most, at about equal ratios, and those that are always shown."""
    return sorted({*np.unique(np.geomspace(1, most, N_SHOWN).round().astype(int)).tolist(), *always})
