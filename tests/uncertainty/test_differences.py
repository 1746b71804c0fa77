"""Levels at which embeddings differ, against Monte Carlo and by hand."""

import numpy as np
import pandas as pd
import pytest
from helpers import naming
from scipy.stats import chi2

import ntfa
from ntfa.errors import ModelError
from ntfa.uncertainty.calibration import degrees_of_freedom, hotelling_factor
from ntfa.uncertainty.differences import difference, difference_matrix, differences, spread


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


# Few halves, tails, many pairs --------------------------------------------------------------------------------------


def estimated(n: int, dim: int, apart: float, seed: int, n_points: int = 400) -> tuple[np.ndarray, pd.DataFrame]:
    """Pairs a true distance apart, in units of noise whose covariance was estimated from n halves, and widened."""
    rng = np.random.default_rng(seed)
    rows, found = [], []
    for _ in range(n_points):
        halves = rng.normal(size=(n, dim))
        covariance = halves.T @ halves / n * hotelling_factor(n, dim)
        points = rng.normal(size=(2, dim))
        points[1, 0] += apart
        rows.append((points, covariance))
    for points, covariance in rows:
        names = [f"z{i + 1}" for i in range(dim)]
        one = pd.DataFrame(points, columns=names, index=["a", "b"])
        for i, name in enumerate(names):
            one[f"{name}_sd"] = np.sqrt(covariance[i, i])
            for j, other in enumerate(names[:i]):
                one[f"{other}_{name}_cov"] = covariance[i, j]
        one.attrs["degrees_of_freedom"] = degrees_of_freedom(n, dim, overfits=True)
        found.append(difference(one, "a", "b"))
    return np.array([each.p for each in found]), pd.DataFrame([vars(each) for each in found])


@pytest.mark.parametrize(("n", "dim"), [(8, 2), (12, 1), (20, 3)])
def test_p_values_of_identical_pairs_are_uniform_in_the_tails_too(n: int, dim: int) -> None:
    p, _ = estimated(n, dim, 0.0, 0, 800)
    for level in (0.2, 0.05, 0.01):
        assert (p < level).mean() == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / len(p)))


@pytest.mark.parametrize("apart", [0.0, 2.0, 6.0])
def test_effects_hold_the_true_distance_and_lie_as_often_above_as_below(apart: float) -> None:
    _, found = estimated(10, 2, apart, 3, 600)
    assert ((found["effect_low"] <= apart) & (apart <= found["effect_high"])).mean() > 0.93
    if apart:
        assert (found["effect"] > apart).mean() == pytest.approx(0.5, abs=0.08)
        assert ((found["effect_low"] <= apart) & (apart <= found["effect_high"])).mean() < 0.98
    else:
        assert (found["effect_low"] == 0).mean() > 0.95


def test_few_halves_leave_a_doubt_that_a_normal_distribution_would_not() -> None:
    embeddings = table(2, 2).assign(z1=[0.0, 10.0])
    certain = difference(embeddings, "p0", "p1").p
    embeddings.attrs["degrees_of_freedom"] = 7
    assert certain < 1e-12 < 1e-9 < difference(embeddings, "p0", "p1").p < 0.05


def test_the_threshold_at_95_percent_is_that_of_the_ellipses() -> None:
    embeddings = table(40, 2)
    plain = difference_matrix(embeddings).to_numpy() >= 0.95
    embeddings.attrs["degrees_of_freedom"] = 8
    assert (plain == (difference_matrix(embeddings).to_numpy() >= 0.95)).all()


def test_all_pairs_are_adjusted_for_their_number() -> None:
    embeddings = table(9, 2)
    embeddings.attrs["degrees_of_freedom"] = 8
    found = differences(embeddings)
    assert len(found) == 36
    assert found["p"].is_monotonic_increasing
    rank = np.arange(1, 37)
    stepped = np.minimum.accumulate((found["p"] * 36 / rank).to_numpy()[::-1])[::-1]
    np.testing.assert_allclose(found["p_adjusted"], np.minimum(stepped, 1))
    first = found.iloc[0]
    alone = difference(embeddings, first["a"], first["b"])
    assert (alone.p, alone.effect) == pytest.approx((first["p"], first["effect"]))
    counted = spread(embeddings)
    assert counted.n_apart == (found["p"] <= 0.05).sum()
    assert counted.n_apart_adjusted == (found["p_adjusted"] <= 0.05).sum()


def test_it_is_at_the_top_of_the_package() -> None:
    assert (ntfa.difference, ntfa.differences) == (difference, differences)
