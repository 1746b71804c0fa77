"""Test-retest reliability against brute force, analysis of variance, and points with known variances."""

import numpy as np
import pandas as pd
import pytest
from helpers import naming

from ntfa.analyses.retest import intraclass_correlation, retest
from ntfa.errors import ModelError


def table(groups: list[np.ndarray]) -> pd.DataFrame:
    rows = [(f"p{i}", f"s{j}") for i, own in enumerate(groups) for j in range(len(own))]
    index = pd.MultiIndex.from_tuples(rows, names=["participant", "session"])
    points = np.concatenate(groups)
    return pd.DataFrame(points, index=index, columns=[f"z{d + 1}" for d in range(points.shape[1])])


def drawn(n: int, k: int, between: float, within: float, n_dim: int = 2, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [between * random.standard_normal(n_dim) + within * random.standard_normal((k, n_dim)) for _ in range(n)]


@pytest.mark.parametrize("reliability", [0.0, 0.5, 0.9])
def test_the_correlation_is_the_share_of_variance_between_people(reliability: float) -> None:
    found = retest(table(drawn(600, 3, np.sqrt(reliability), np.sqrt(1 - reliability))))
    assert found.icc == pytest.approx(reliability, abs=0.04)
    assert found.low < found.icc < found.high
    assert found.within == pytest.approx(np.sqrt(2 * 2 * (1 - reliability)), rel=0.05)
    assert found.between == pytest.approx(np.sqrt(2 * 2), rel=0.05)


def test_in_one_dimension_it_is_that_of_an_analysis_of_variance() -> None:
    groups = drawn(7, 2, 1.0, 0.7, n_dim=1)
    x = np.concatenate(groups)[:, 0].reshape(7, 2)
    between = 2 * x.mean(1).var(ddof=1)
    within = (x[:, 0] - x[:, 1]).var() / 2 + ((x[:, 0] - x[:, 1]).mean() ** 2) / 2
    assert intraclass_correlation(groups) == pytest.approx((between - within) / (between + within))


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    inside = 0
    for seed in range(60):
        found = retest(table(drawn(30, 2, 1.0, 0.6, seed=seed)))
        inside += found.low <= 1 / (1 + 0.36) <= found.high
    assert 49 <= inside <= 60


def test_nearest_sessions_are_those_of_brute_force() -> None:
    groups = [*drawn(6, 2, 1.0, 0.5), *drawn(3, 3, 1.0, 0.5, seed=1)]
    found = retest(table(groups))
    points = [(i, point) for i, own in enumerate(groups) for point in own]
    hits, chances = [], []
    for a, (who, point) in enumerate(points):
        others = [(np.linalg.norm(point - other), whose) for b, (whose, other) in enumerate(points) if b != a]
        hits.append(min(others)[1] == who)
        chances.append(np.mean([whose == who for _, whose in others]))
    assert found.identified == pytest.approx(np.mean(hits))
    assert found.by_chance == pytest.approx(np.mean(chances))
    assert (found.n_people, found.n_points) == (9, 21)


def test_turning_and_scaling_change_nothing_and_single_sessions_do_not_count() -> None:
    groups = drawn(8, 2, 1.0, 0.5)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    one, other = retest(table(groups)), retest(table([3 * own @ turn + 5 for own in groups]))
    assert other.icc == pytest.approx(one.icc)
    assert other.within / other.between == pytest.approx(one.within / one.between)
    more = table([*groups, np.zeros((1, 2))])
    assert retest(more) == one


def test_few_people_are_refused() -> None:
    with pytest.raises(ModelError, match=naming(3, 2)):
        retest(table(drawn(2, 2, 1.0, 0.5)))
