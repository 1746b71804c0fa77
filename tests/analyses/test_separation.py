"""Groups among points: against scikit-learn, explicit loops and chance."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import silhouette_score

from ntfa.analyses.separation import group_structure, mean_silhouette, nearest_centroid_accuracy, separation
from ntfa.errors import StudyError

SIZES = (3, 5, 2, 7)


def table(points: np.ndarray) -> pd.DataFrame:
    columns = [f"z{d + 1}" for d in range(points.shape[1])]
    return pd.DataFrame(points, columns=columns, index=[f"p{i:02d}" for i in range(len(points))])


def labels_for(points: pd.DataFrame, sizes: tuple[int, ...]) -> pd.Series:
    return pd.Series(np.repeat([f"group {i}" for i in range(len(sizes))], sizes), index=points.index)


def leave_one_out(points: np.ndarray, codes: np.ndarray) -> float:
    right = 0
    for i in range(len(points)):
        others = np.arange(len(points)) != i
        centroids = [points[others & (codes == code)].mean(0) for code in np.unique(codes)]
        right += int(np.unique(codes)[np.argmin([np.linalg.norm(points[i] - c) for c in centroids])] == codes[i])
    return right / len(points)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_numbers_are_those_of_sklearn_and_of_a_loop(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    points = rng.normal(size=(len(codes), 3)) + shift * codes[:, None]
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert mean_silhouette(distances, codes) == pytest.approx(silhouette_score(points, codes), abs=1e-12)
    assert nearest_centroid_accuracy(points, codes) == pytest.approx(leave_one_out(points, codes), abs=1e-12)
    embedded = table(points).assign(z1_sd=1e6, z1_z2_cov=-1e6)
    groups = pd.Series(codes, index=embedded.index).sample(frac=1, random_state=seed)
    found = group_structure(embedded, groups, n_permutations=10)
    assert found.silhouette == pytest.approx(silhouette_score(points, codes), abs=1e-12)
    assert found.accuracy == pytest.approx(leave_one_out(points, codes), abs=1e-12)
    assert (found.n_points, found.n_groups, found.chance) == (17, 4, pytest.approx(7 / 17))


def test_a_point_alone_has_the_silhouette_that_sklearn_gives_it() -> None:
    points, codes = np.random.default_rng(0).normal(size=(8, 2)), np.array([0, 1, 1, 1, 2, 2, 2, 3])
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert mean_silhouette(distances, codes) == pytest.approx(silhouette_score(points, codes), abs=1e-12)


def test_points_that_coincide_have_no_silhouette() -> None:
    codes = np.array([0, 0, 1, 1])
    assert mean_silhouette(np.zeros((4, 4)), codes) == 0
    found = group_structure(table(np.zeros((4, 2))), labels_for(table(np.zeros((4, 2))), (2, 2)), n_permutations=20)
    assert (found.silhouette_p, found.accuracy_p) == (1.0, 1.0)


def test_p_values_are_exact_where_all_shufflings_can_be_counted() -> None:
    # Two pairs can be matched in three ways, one of which is the best.
    points = table(np.array([[0.0], [0.1], [5.0], [5.1]]))
    found = group_structure(points, labels_for(points, (2, 2)), n_permutations=4000, random_state=1)
    assert (found.accuracy, found.silhouette) == (1.0, pytest.approx(0.98, abs=0.005))
    for p in (found.silhouette_p, found.accuracy_p):
        assert abs(p - 1 / 3) < 4 * np.sqrt(2 / 9 / 4000)


def test_p_values_are_at_chance_under_the_null_and_small_for_groups() -> None:
    rng = np.random.default_rng(0)
    found = []
    for seed in range(200):
        points = table(rng.normal(size=(12, 2)))
        found.append(group_structure(points, labels_for(points, (4, 4, 4)), n_permutations=99, random_state=seed))
    for name, spread in (("silhouette_p", True), ("accuracy_p", False)):
        p = np.array([getattr(one, name) for one in found])
        for level in (0.05, 0.2, 0.5):
            at_chance = level + 3 * np.sqrt(level * (1 - level) / len(p))
            assert (p <= level).mean() <= at_chance, name
        if spread:
            assert abs(p.mean() - 0.5) < 3 / np.sqrt(12 * len(p))
    points = table(rng.normal(size=(12, 2)) + np.repeat([0, 6, 12], 4)[:, None])
    apart = group_structure(points, labels_for(points, (4, 4, 4)), n_permutations=199)
    assert apart.accuracy == 1
    assert apart.silhouette > 0.5
    assert apart.silhouette_p == apart.accuracy_p == 1 / 200


def test_same_seed_same_p() -> None:
    points = table(np.random.default_rng(3).normal(size=(9, 2)))
    groups = labels_for(points, (4, 5))
    assert group_structure(points, groups) == group_structure(points, groups)


def test_singletons_and_points_without_a_label_are_left_out() -> None:
    rng = np.random.default_rng(4)
    points = table(rng.normal(size=(9, 2)))
    groups = pd.Series(["a", "a", "b", "b", "b", None, "lone", np.nan], index=points.index[:8])
    groups["nobody"] = "a"
    found = group_structure(points, groups, n_permutations=30)
    kept = points.iloc[:5]
    assert found.left_out == ("lone",)
    assert (found.n_points, found.n_groups) == (5, 2)
    expected = group_structure(kept, groups.iloc[:5], n_permutations=30)
    assert (found.silhouette, found.accuracy) == (expected.silhouette, expected.accuracy)
    assert found.chance == pytest.approx(3 / 5)


@pytest.mark.parametrize("groups", [["a", "a", "a", "a"], ["a", "b", "c", "d"], ["a", "a", "a", "b"], [None] * 4])
def test_what_cannot_be_separated_is_refused(groups: list[str | None]) -> None:
    points = table(np.eye(4))
    with pytest.raises(StudyError):
        group_structure(points, pd.Series(groups, index=points.index))


def test_clusters_agree_with_clear_groups_only() -> None:
    rng = np.random.default_rng(5)
    points = table(rng.normal(size=(20, 2)) + 20 * np.repeat([0, 1], 10)[:, None])
    assert separation(points, labels_for(points, (10, 10))).agreement == 1
    mixed = pd.Series(["a", "b"] * 10, index=points.index)
    assert separation(points, mixed).agreement < 0.3
