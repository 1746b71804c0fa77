"""Simulated studies of cortex, with factors that lie on opposite banks of a sulcus.

A factor is round on the cortex: exp(-d^2 / w^2), with d the distance along the cortex, over the sphere or over the
folded surface itself. Factors come in pairs whose centres are near each other in a straight line, across a sulcus, and
far from each other along the cortex; the two of a pair respond to stimuli independently of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.seeds import RandomState, as_seed
from ntfa.study import Study
from ntfa.study.checks import FloatArray
from ntfa.study.greyordinates import Greyordinates, cortex_axis
from ntfa.study.spheres import great_circle
from ntfa.study.surfaces import HEMISPHERES, Surface, Surfaces

ACROSS_MM, ALONG_MM = 10.0, 40.0
"""Centres of a pair are nearer than the first in a straight line, and farther than the second over the sphere."""
APART_MM = 30.0
FRAMES, WIDTH_MM = 6, 14.0


@dataclass(frozen=True)
class CorticalTruth:
    """What a simulated study of cortex was made of.

    factors : DataFrame
        `factor, side, vertex, x, y, z, width`; 1 and 2, 3 and 4, ... are pairs across a sulcus.
    images : [participants, stimuli, V]
        Mean images without noise.
    """

    factors: pd.DataFrame
    images: FloatArray
    space: Greyordinates

    def distances(self, factors: pd.DataFrame) -> FloatArray:
        """Distance over the sphere, mm, of each true factor from the nearest of some factors `structure, x, y, z`."""
        found = np.full(len(self.factors), np.inf)
        for i, (side, vertex) in enumerate(zip(self.factors["side"], self.factors["vertex"], strict=True)):
            surface = self.space.surfaces.by_side[side]
            own = factors.loc[factors["structure"] == f"{side} cortex", ["x", "y", "z"]].to_numpy(np.float64)
            for place in own:
                away = great_circle(direction_of(surface, place), surface.directions[vertex], surface.radius)
                found[i] = min(found[i], float(away))
        return found


def direction_of(surface: Surface, place: FloatArray) -> FloatArray:
    """Return the direction on the sphere of the point of the midthickness surface that is nearest to a place in mm."""
    near = np.argsort(((surface.midthickness - place) ** 2).sum(1))[:6]
    best, found = np.inf, surface.directions[near[0]]
    for corners in surface.faces[np.isin(surface.faces, near).any(1)]:
        points = surface.midthickness[corners]
        edges = (points[1:] - points[0]).T
        shares = np.linalg.lstsq(edges, place - points[0], rcond=None)[0].clip(0, 1)
        shares = np.append(1 - shares.sum(), shares).clip(0, 1)
        shares /= shares.sum()
        away = float(((shares @ points - place) ** 2).sum())
        if away < best:
            best, found = away, shares @ surface.directions[corners]
    return np.asarray(found / np.linalg.norm(found))


def simulate_cortex(
    n_participants: int = 8,
    n_stimuli: int = 12,
    n_pairs: int = 3,
    *,
    n_vertices: int = 10242,
    noise: float = 1.0,
    along: str = "sphere",
    distance: str = "sphere",
    random_state: RandomState = 0,
) -> tuple[Study, CorticalTruth]:
    """Simulate a study of cortex on fsaverage5, with pairs of factors across a sulcus.

    Parameters
    ----------
    n_vertices : int
        Of each hemisphere; 2562 is fsaverage4.
    noise : float
        Standard deviation of every vertex in every frame; factors' weights have one of about 1.
    along : {"sphere", "surface"}
        Over what factors are round: the sphere, or the folded surface, whose distances the sphere distorts.
    distance : {"sphere", "straight"}
        What a model of the study will take distances to be.
    """
    rng = np.random.default_rng(as_seed(random_state))
    surfaces = Surfaces.fsaverage(n_vertices)
    space = Greyordinates(cortex_axis(dict.fromkeys(HEMISPHERES, n_vertices)), surfaces, distance, "surface")
    table = _pairs(space, n_pairs, rng)
    shapes = np.zeros((len(table), len(space)))
    for shape, side, vertex in zip(shapes, table["side"], table["vertex"], strict=True):
        away = _distances(surfaces.by_side[side], vertex, along)
        shape[space.columns[side]] = np.exp(-((away / WIDTH_MM) ** 2))
    weights = rng.normal(size=(n_stimuli, len(table))) + 0.4 * rng.normal(size=(n_participants, n_stimuli, len(table)))
    images = weights @ shapes
    return _recorded(images, weights, shapes, space, noise, rng), CorticalTruth(table, images, space)


def _recorded(images: Any, weights: Any, shapes: Any, space: Greyordinates, noise: float, rng: Any) -> Study:
    """Frames of every pair: the weights' own variation, and noise of every vertex."""
    n_participants, n_stimuli = images.shape[:2]
    frames, rows = {}, []
    for p in range(n_participants):
        own = np.repeat(weights[p], FRAMES, axis=0)
        own = own + 0.3 * rng.normal(size=own.shape)
        noisy = own @ shapes + noise * rng.normal(size=(len(own), len(space)))
        frames[f"sub-{p + 1:02d}"] = noisy.astype(np.float32)
        rows += [(f"sub-{p + 1:02d}", f"stimulus-{s + 1:02d}", s * FRAMES, (s + 1) * FRAMES) for s in range(n_stimuli)]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    return Study.from_arrays(frames, trials, space.coordinates, space)


def _pairs(space: Greyordinates, n_pairs: int, rng: np.random.Generator) -> pd.DataFrame:
    """Choose vertices in pairs, on sides in turn, each pair far from the others."""
    from scipy.spatial import cKDTree

    rows: list[dict[str, Any]] = []
    for pair in range(n_pairs):
        side = HEMISPHERES[pair % 2]
        surface = space.surfaces.by_side[side]
        near = cKDTree(surface.midthickness).query_pairs(ACROSS_MM, output_type="ndarray")
        one, other = (surface.directions[vertices] for vertices in near.T)
        near = near[great_circle(one, other, surface.radius) > ALONG_MM]
        taken = [row["vertex"] for row in rows if row["side"] == side]
        for vertices in rng.permutation(near):
            apart = [
                great_circle(surface.directions[t], surface.directions[vertices], surface.radius).min() for t in taken
            ]
            if all(away > APART_MM for away in apart):
                break
        else:
            raise ValueError(f"{n_pairs} pairs of factors are too many to lie apart from each other")
        rows += [
            {"side": side, "vertex": int(v)} | dict(zip("xyz", surface.midthickness[v], strict=True)) for v in vertices
        ]
    return pd.DataFrame(rows).assign(factor=range(1, 2 * n_pairs + 1), width=WIDTH_MM)


def _distances(surface: Surface, vertex: int, along: str) -> FloatArray:
    """Distance along the cortex, mm, of all vertices of a hemisphere from one."""
    if along == "sphere":
        return great_circle(surface.directions, surface.directions[vertex], surface.radius)
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import dijkstra

    edges: NDArray[np.int64] = np.concatenate([surface.faces[:, [i, (i + 1) % 3]] for i in range(3)])
    lengths = np.linalg.norm(np.subtract(*(surface.midthickness[end] for end in edges.T)), axis=1)
    graph = coo_matrix((lengths, tuple(edges.T)), shape=(surface.n_vertices,) * 2).tocsr()
    return np.asarray(dijkstra(graph, directed=False, indices=vertex))
