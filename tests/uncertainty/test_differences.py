"""Levels at which embeddings differ, against Monte Carlo and by hand."""

import numpy as np
import pandas as pd
import pytest
from helpers import naming
from scipy.stats import chi2

from ntfa.errors import ModelError
from ntfa.uncertainty.differences import difference, difference_matrix, spread


def table(n: int, dim: int, seed: int = 0, *, covariances: bool = False) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    names = [f"z{i + 1}" for i in range(dim)]
    made = pd.DataFrame(random.normal(size=(n, dim)), index=[f"p{i}" for i in range(n)], columns=names)
    for name in names:
        made[f"{name}_sd"] = random.uniform(0.3, 0.8, n)
    if covariances:
        for i, one in enumerate(names):
            for other in names[:i]:
                made[f"{other}_{one}_cov"] = 0.5 / dim * made[f"{one}_sd"] * made[f"{other}_sd"]
    return made


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
@pytest.mark.parametrize("covariances", [False, True])
def test_the_level_is_the_mass_of_the_largest_ellipsoid_without_zero(dim: int, covariances: bool) -> None:
    embeddings = table(2, dim, seed=dim, covariances=covariances)
    names = [f"z{i + 1}" for i in range(dim)]
    variance = np.zeros((dim, dim))
    for _, row in embeddings.iterrows():
        variance += np.diag(row[[f"{name}_sd" for name in names]].to_numpy(dtype=float) ** 2)
        for i, one in enumerate(names):
            for j, other in enumerate(names[:i]):
                variance[i, j] += row.get(f"{other}_{one}_cov", 0.0)
                variance[j, i] = variance[i, j]
    mean = (embeddings.iloc[0] - embeddings.iloc[1])[names].to_numpy(dtype=float)
    draws = np.random.default_rng(1).multivariate_normal(mean, variance, size=200_000)
    precision = np.linalg.inv(variance)
    from_mean = np.einsum("ni,ij,nj->n", draws - mean, precision, draws - mean)
    inside = (from_mean < mean @ precision @ mean).mean()
    found = difference(embeddings, "p0", "p1")
    assert found.level == pytest.approx(inside, abs=0.005)
    assert found.distance == pytest.approx(np.linalg.norm(mean))
    np.testing.assert_allclose(found.mean, mean)
    np.testing.assert_allclose(found.sd, np.sqrt(np.diag(variance)))


def test_a_difference_by_hand() -> None:
    embeddings = pd.DataFrame({"z1": [0.0, 3.0], "z2": [0.0, 4.0], "z1_sd": 0.6, "z2_sd": 0.8}, index=["a", "b"])
    squared = 9 / (2 * 0.36) + 16 / (2 * 0.64)
    assert difference(embeddings, "a", "b").level == pytest.approx(chi2.cdf(squared, 2))
    assert difference(embeddings, "a", "b").distance == 5


def test_the_matrix_has_every_pair() -> None:
    embeddings = table(6, 3, covariances=True)
    matrix = difference_matrix(embeddings)
    assert matrix.index.tolist() == matrix.columns.tolist() == embeddings.index.tolist()
    for a in embeddings.index:
        for b in embeddings.index:
            assert matrix.loc[a, b] == pytest.approx(difference(embeddings, a, b).level)
    assert (np.diag(matrix) == 0).all()


def test_labels_in_a_table_with_one_row_each_are_needed() -> None:
    with pytest.raises(ModelError, match=naming("nobody", "p0", "p1")):
        difference(table(3, 2), "p0", "nobody")
    with pytest.raises(ModelError, match="z1_sd"):
        difference_matrix(table(3, 2)[["z1", "z2"]])


def test_spread_counts_pairs_apart() -> None:
    embeddings = pd.DataFrame({"z1": [0.0, 0.01, 10.0], "z1_sd": [0.1, 0.1, 0.1]}, index=list("abc"))
    found = spread(embeddings)
    assert (found.n_pairs, found.n_apart) == (3, 2)
    assert found.share_apart == pytest.approx(2 / 3)
    assert found.ratio == pytest.approx(np.std([0.0, 0.01, 10.0]) / 0.1)
    alone = spread(embeddings.head(1))
    assert (alone.n_pairs, alone.share_apart) == (0, 0.0)


def test_alike_points_seldom_differ() -> None:
    """Where truth is the same point and posteriors are calibrated, levels are uniform: one in twenty is above 95%."""
    random = np.random.default_rng(0)
    embeddings = pd.DataFrame(random.normal(size=(400, 2)), columns=["z1", "z2"]).assign(z1_sd=1.0, z2_sd=1.0)
    assert spread(embeddings).share_apart == pytest.approx(0.05, abs=0.015)
