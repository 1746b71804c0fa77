"""Does closeness of embeddings go with a number that people have? Two forms (Finn et al. 2020).

*Nearest neighbours*: two people with similar numbers are alike, wherever they are on the scale. *Alike at one end*
("Anna Karenina"): people at one end are alike, and those at the other end each differ in their own way. Both are rank
correlations over pairs, and since every person is part of many pairs, people are permuted, not pairs (Mantel 1967).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import pdist, squareform
from scipy.stats import rankdata

from ntfa.analyses.permutations import Floats, Ints, share_as_large


@dataclass(frozen=True)
class Similarity:
    """A rank correlation over pairs, and the share of permutations in which it is as large."""

    correlation: float
    p: float


def neighbours_test(points: Floats, trait: Floats, orders: Ints) -> Similarity:
    """Test whether pairs close in the trait [n] are close in the embedding [n, D]; permutations [m, n]."""
    correlations = permuted_correlations(points, neighbour_closeness(trait), orders)
    return Similarity(float(correlations[0]), share_as_large(correlations))


def one_end_test(points: Floats, trait: Floats, orders: Ints) -> Similarity:
    """Test whether pairs with a high mean trait are closer in the embedding than those with a low one, or farther."""
    correlations = permuted_correlations(points, pair_means(trait), orders)
    return Similarity(float(correlations[0]), share_as_large(np.abs(correlations)))


def neighbour_closeness(trait: Floats) -> Floats:
    """Minus the difference of every two traits, [n (n - 1) / 2]."""
    return -pdist(trait[:, None])


def pair_means(trait: Floats) -> Floats:
    """Mean trait of every two, [n (n - 1) / 2]."""
    one, other = np.triu_indices(len(trait), 1)
    return (trait[one] + trait[other]) / 2


def permuted_correlations(points: Floats, of_pairs: Floats, orders: Ints) -> Floats:
    """Rank correlations [m] of closeness with what pairs have, for all permutations of the points."""
    n = len(points)
    one, other = np.triu_indices(n, 1)
    close, trait = _ranks(-pdist(points)), _ranks(of_pairs)
    whole = squareform(close)
    found = [float(whole[order[one], order[other]] @ trait) for order in orders]
    return np.array(found)


def _ranks(values: Floats) -> Floats:
    """Ranks, centred and of unit length; zero if all are the same."""
    ranks = rankdata(values) - (len(values) + 1) / 2
    length = float(np.linalg.norm(ranks))
    return np.asarray(ranks / length if length > 0 else ranks)
