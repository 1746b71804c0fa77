"""Fit BrainIAK's TFA or HTFA to a data file of `peers.py`; runs in an environment that has BrainIAK, not ntfa.

    python benchmarks/peers_brainiak.py {TFA,HTFA} DATA.npz OUT.npz

HTFA has the settings of BrainIAK's own example (5 global and 2 local iterations, each on half of the voxels and half of
the frames); TFA has its defaults, with all voxels and frames, and is fitted to the first participant. At most 5,000
voxels and 500 frames are drawn at a time, BrainIAK's default: the Jacobian has one row per voxel and frame, and 4 K
columns.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from brainiak.factoranalysis.htfa import HTFA
from brainiak.factoranalysis.tfa import TFA


def count_inner_fits(at_most: int) -> None:
    """Have a line printed after every least-squares fit of one participant's centres and widths."""
    inner, done = TFA._estimate_centers_widths, []

    def counted(*args: object) -> object:
        found = inner(*args)
        done.append(None)
        print(f"{len(done)} of at most {at_most} inner fits", flush=True)
        return found

    TFA._estimate_centers_widths = counted


def fit_tfa(frames: list[np.ndarray], coordinates: np.ndarray, n_factors: int) -> tuple[np.ndarray, ...]:
    """Return centres [1, K, 3], widths [1, K] and weights [1, T, K] of the first participant."""
    n_voxels, n_frames = frames[0].shape
    model = TFA(K=n_factors, max_num_voxel=min(n_voxels, 5000), max_num_tr=min(n_frames, 500))
    count_inner_fits(model.miter)
    model.fit(frames[0], coordinates)
    found = model.local_posterior_
    return model.get_centers(found)[None], model.get_widths(found).T, model.W_.T[None]


def fit_htfa(frames: list[np.ndarray], coordinates: np.ndarray, n_factors: int) -> tuple[np.ndarray, ...]:
    """Return centres [P, K, 3], widths [P, K] and weights [P, T, K] of every participant."""
    n_frames = frames[0].shape[1]
    model = HTFA(
        K=n_factors,
        n_subj=len(frames),
        max_global_iter=5,
        max_local_iter=2,
        voxel_ratio=0.5,
        tr_ratio=0.5,
        max_voxel=5000,
        max_tr=500,
    )
    count_inner_fits(model.max_global_iter * model.max_local_iter * len(frames))
    model.fit(frames, [coordinates] * len(frames))
    own = model.local_posterior_.reshape(len(frames), -1)
    centers, widths = own[:, : 3 * n_factors].reshape(-1, n_factors, 3), own[:, 3 * n_factors :]
    return centers, widths, model.local_weights_.reshape(len(frames), n_factors, n_frames).swapaxes(1, 2)


def main() -> None:
    """Fit, and write what was found and how long it took."""
    kind, data, out = sys.argv[1:]
    with np.load(data) as kept:
        frames = [np.ascontiguousarray(one.T, dtype=np.float64) for one in kept["frames"]]
        coordinates, n_factors = kept["coordinates"].astype(np.float64), int(kept["n_factors"])
    np.random.seed(0)  # noqa: NPY002  BrainIAK draws from the global generator
    wall, cpu = time.perf_counter(), time.process_time()
    centers, widths, weights = {"TFA": fit_tfa, "HTFA": fit_htfa}[kind](frames, coordinates, n_factors)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    # BrainIAK's width is in mm^2.
    np.savez(out, centers=centers, widths=np.sqrt(widths), weights=weights, wall=wall, cpu=cpu)


if __name__ == "__main__":
    main()
