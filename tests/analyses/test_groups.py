"""Groups found from points alone: simulated points with one to four groups, and none found where there are none."""

import numpy as np
import pandas as pd
import pytest
from scipy.cluster.hierarchy import fcluster, ward
from sklearn.metrics import adjusted_rand_score, silhouette_score

from ntfa.analyses.groups import find_groups
from ntfa.errors import StudyError


def table(points: np.ndarray) -> pd.DataFrame:
    columns = [f"z{d + 1}" for d in range(points.shape[1])]
    return pd.DataFrame(points, columns=columns, index=[f"p{i:02d}" for i in range(len(points))])


def simulated(n_groups: int, dimension: int, seed: int, n_points: int = 24, apart: float = 9.0) -> pd.DataFrame:
    """Points with sd 1 around centres no two of which are nearer than `apart`, and their group."""
    random = np.random.default_rng(seed)
    centres = random.uniform(0, 2 * apart * n_groups, (1, dimension))
    while len(centres) < n_groups:
        another = random.uniform(0, 2 * apart * n_groups, dimension)
        if np.linalg.norm(centres - another, axis=1).min() > apart:
            centres = np.vstack([centres, another])
    codes = random.permutation(np.arange(n_points) % n_groups)
    return table(centres[codes] + random.normal(size=(n_points, dimension))).assign(group=codes.astype(str))


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("n_groups", [2, 3, 4])
def test_as_many_groups_are_found_as_were_simulated(n_groups: int, dimension: int) -> None:
    right, agreement = [], []
    for seed in range(20):
        points = simulated(n_groups, dimension, seed)
        found = find_groups(points.drop(columns="group"), n_draws=49, random_state=seed)
        right.append(found.n_groups == n_groups)
        agreement.append(found.agreement(points["group"]))
    # Where centres lie in two far pairs, the pairs are the better clusters.
    assert np.mean(right) >= 0.75
    assert np.median(agreement) == 1


@pytest.mark.parametrize(
    ("n_points", "dimension", "stretch"), [(8, 1, 1.0), (8, 2, 1.0), (8, 2, 5.0), (20, 2, 5.0), (20, 4, 1.0)]
)
def test_groups_are_seldom_found_where_there_are_none(n_points: int, dimension: int, stretch: float) -> None:
    n_studies, level = 100, 0.1
    scales = np.r_[stretch, np.ones(dimension - 1)]
    found = [
        find_groups(
            table(np.random.default_rng(seed).normal(size=(n_points, dimension)) * scales),
            level=level,
            n_draws=39,
            random_state=seed,
        )
        for seed in range(n_studies)
    ]
    assert np.mean([one.n_groups > 1 for one in found]) <= level + 3 * np.sqrt(level * (1 - level) / n_studies)
    assert all(one.n_clusters > 1 for one in found)


def test_clusters_are_those_of_wards_method_with_the_largest_silhouette_of_sklearn() -> None:
    points = simulated(3, 2, seed=1, n_points=15, apart=3.0).drop(columns="group")
    found = find_groups(points, max_groups=6, n_draws=1)
    cuts = {n: fcluster(ward(points), n, "maxclust") for n in range(2, 7)}
    scores = {n: silhouette_score(points, codes) for n, codes in cuts.items()}
    best = max(scores, key=scores.__getitem__)
    assert found.n_clusters == best
    assert found.silhouette == pytest.approx(scores[best], abs=1e-12)
    assert adjusted_rand_score(cuts[best], found.clusters) == 1


def test_clusters_do_not_depend_on_order_orientation_or_uncertainty() -> None:
    points = simulated(3, 3, seed=0).drop(columns="group")
    expected = find_groups(points, n_draws=1).clusters
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    turned = table(points.to_numpy() @ turn * 7 - 100)
    others = (points.sample(frac=1, random_state=0), turned, points.assign(z1_sd=1e3, z1_z2_cov=-1e3))
    for same in others:
        assert adjusted_rand_score(expected, find_groups(same, n_draws=1).clusters.loc[expected.index]) == 1


def test_the_p_value_is_the_share_of_clouds_that_look_as_clustered() -> None:
    apart = find_groups(simulated(2, 2, seed=0, apart=50.0).drop(columns="group"), n_draws=39)
    assert apart.p_value == pytest.approx(1 / 40)
    assert (apart.n_groups, apart.n_clusters) == (2, 2)
    unsure = find_groups(table(np.random.default_rng(0).normal(size=(10, 2))), n_draws=39)
    assert unsure.p_value > 0.05
    assert unsure.n_groups == 1 < unsure.n_clusters


def test_points_that_coincide_are_one_group() -> None:
    found = find_groups(table(np.zeros((6, 2))), n_draws=9)
    assert (found.n_groups, found.n_clusters, found.p_value) == (1, 1, 1.0)


def test_no_more_clusters_than_half_the_points_or_than_asked_for() -> None:
    pairs = table(np.repeat(100.0 * np.arange(6) ** 2, 2)[:, None] + np.tile([0.0, 1.0], 6)[:, None])
    assert find_groups(pairs, n_draws=1).n_clusters == 6
    assert find_groups(pairs, max_groups=3, n_draws=1).n_clusters <= 3


def test_points_that_cannot_be_clustered_are_refused() -> None:
    with pytest.raises(StudyError, match="3"):
        find_groups(table(np.eye(3)))
    points = table(np.random.default_rng(0).normal(size=(6, 2)))
    points.loc["p02", "z2"] = np.nan
    with pytest.raises(StudyError, match="p02"):
        find_groups(points)
