"""Permutation tests of location, dispersion and similarity: brute force, scikit-bio's numbers, simulated truth."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform
from scipy.stats import kstest, spearmanr

from ntfa.analyses.attenuation import draw_noise, explained_interval
from ntfa.analyses.dispersion import centre_distances, dispersion_test, spatial_median
from ntfa.analyses.permutations import (
    Design,
    indicators,
    location_test,
    log_arrangements,
    permuted_orders,
    random_signs,
)
from ntfa.analyses.similarity import neighbours_test, one_end_test

# Points, groups and a trait for which scikit-bio 0.7.4 gave the numbers below.
SIZES = (5, 7, 9)
known_codes = np.repeat([0, 1, 2], SIZES)
POINTS = np.array(
    [
        [-0.8, -1.32, -0.25], [0.42, 1.14, 0.11], [-0.55, -0.78, 0.75], [1.63, 0.27, -1.23], [-0.96, 1.6, 0.2],
        [-1.23, 0.42, -0.66], [-0.13, 0.01, -0.21], [1.05, 0.44, -0.09], [0.91, 1.33, -1.14], [0.24, -0.48, 0.33],
        [-0.79, 0.52, 0.46], [0.2, -0.55, 0.1], [-0.09, -0.36, 1.22], [-0.11, 2.17, 1.72], [-1.0, 1.27, -0.1],
        [1.03, 1.04, -0.99], [0.77, 0.74, 1.96], [-0.18, 1.74, -0.1], [0.67, 0.16, 2.45], [1.57, 3.43, 1.64],
        [1.84, 1.84, 0.39],
    ]
)  # fmt: skip
TRAIT = np.array(
    [
        -0.07, 1.35, -0.4, 0.19, -0.02, 0.61, -0.36, -0.15, 0.24, 0.1, -0.86, 0.9, -1.3, -1.2, -1.28, 0.97, -0.36,
        -0.97, -1.14, 0.42, -1.05,
    ]
)  # fmt: skip
PSEUDO_F, PERMDISP_MEDIAN_F, MANTEL = 2.454643, 4.5884, (-0.012621948952659197, 0.5345)


def residuals(y, columns):
    return y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]


def f_and_deviate(y, x, z):
    """F and its normal deviate by loops over points, from the equations of the module."""
    n = len(y)
    z = np.column_stack([np.ones(n), z])
    full = np.column_stack([z, x])
    left = residuals(x, z)
    a = np.linalg.qr(left)[0]
    explained = sum(float(column @ y[:, d]) ** 2 for column in a.T for d in range(y.shape[1]))
    hat = full @ np.linalg.pinv(full)
    errors, omega = residuals(y, full), 0.0
    for i in range(n):
        row = np.kron(a[i], errors[i]) / (1 - hat[i, i])
        omega = omega + np.outer(row, row)
    f = explained / np.trace(omega)
    freedom = np.trace(omega) ** 2 / np.trace(omega @ omega)
    return f, (np.cbrt(f) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom))


def all_orders(n):
    return np.array(list(permutations(range(n))))


# --- location


def test_the_share_of_variance_is_that_of_permanova():
    found = location_test(POINTS, Design.of(indicators(known_codes)), permuted_orders(21, 99, 0))
    assert found.r2 == pytest.approx(2 * PSEUDO_F / (2 * PSEUDO_F + 18), rel=1e-6)
    squared = squareform(pdist(POINTS)) ** 2
    within = sum(squared[np.ix_(known_codes == g, known_codes == g)].sum() / (2 * size) for g, size in enumerate(SIZES))
    assert found.r2 == pytest.approx(1 - within / (squared.sum() / (2 * 21)))


def test_f_of_groups_allows_for_each_groups_own_variance():
    found = location_test(POINTS, Design.of(indicators(known_codes)), permuted_orders(21, 99, 0))
    mean = POINTS.mean(0)
    between = by_chance = 0.0
    for group, size in enumerate(SIZES):
        own = POINTS[known_codes == group]
        between += size * ((own.mean(0) - mean) ** 2).sum()
        # Anderson et al. (2017): (1 - n / N) V, here with V multiplied by n / (n - 1).
        by_chance += (1 - size / 21) * own.var(0, ddof=1).sum() * size / (size - 1)
    assert found.statistic == pytest.approx(between / by_chance)


@pytest.mark.parametrize("with_confound", [False, True])
def test_statistic_and_p_are_those_of_brute_force(with_confound):
    rng = np.random.default_rng(3)
    y, x = rng.normal(size=(6, 2)), rng.normal(size=(6, 1))
    z = rng.normal(size=(6, 1)) if with_confound else np.empty((6, 0))
    orders = all_orders(6)
    left = residuals(y, np.column_stack([np.ones(6), z]))
    expected = [f_and_deviate(left[order], x, z) for order in orders]
    found = location_test(y, Design.of(x, z), orders)
    assert found.statistic == pytest.approx(expected[0][0])
    deviates = np.array([deviate for _, deviate in expected])
    assert found.p == pytest.approx((deviates >= deviates[0] - 1e-9).mean())
    signs = random_signs(6, 63, 0)
    flipped = np.array([f_and_deviate(left * sign[:, None], x, z)[1] for sign in signs])
    both = location_test(y, Design.of(x, z), orders, signs)
    assert both.p == pytest.approx(max(found.p, (flipped >= flipped[0] - 1e-9).mean()))


def test_units_of_predictors_and_confounds_do_not_matter():
    rng = np.random.default_rng(0)
    y, x, z = rng.normal(size=(20, 2)), rng.normal(size=(20, 1)), rng.normal(size=(20, 2))
    orders = permuted_orders(20, 199, 0)
    plain = location_test(y, Design.of(x, z), orders)
    scaled = location_test(1e3 * y + 5, Design.of(1e-6 * x + 1e3, 1e9 * z - 1e10), orders)
    assert scaled.p == plain.p
    assert (scaled.statistic, scaled.r2) == pytest.approx((plain.statistic, plain.r2), rel=1e-4)


def test_large_effects_do_not_round_to_ties():
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1], 30)
    y = rng.normal(size=(60, 4)) + 1000 * codes[:, None]
    assert location_test(y, Design.of(indicators(codes)), permuted_orders(60, 999, 0)).p == 1 / 1000


@pytest.mark.parametrize("scale", [0.0, 1e-8, 1.0, 1e8])
def test_a_perfect_fit_and_no_variance_are_numbers(scale):
    codes = np.repeat([0, 1], 5)
    y = np.full((10, 2), 3.0) + scale * codes[:, None]
    orders = permuted_orders(10, 199, 0)
    found = location_test(y, Design.of(indicators(codes)), orders, random_signs(10, 199, 0))
    assert np.isfinite([found.statistic, found.r2, found.p]).all()
    assert found.p < 0.05 if scale else found.p == 1
    assert dispersion_test(y, codes, orders).p == 1


def p_values(make, n_studies, signs=True, n_permutations=99):
    found = []
    for seed in range(n_studies):
        rng = np.random.default_rng([seed, 7])
        y, x, z = make(rng)
        orders, flips = permuted_orders(len(y), n_permutations, seed), random_signs(len(y), n_permutations, seed)
        found.append(location_test(y, Design.of(x, z), orders, flips if signs else None).p)
    return np.array(found)


def unequal_groups(rng, sizes=(8, 32), sds=(3, 1)):
    codes = np.repeat(np.arange(len(sizes)), sizes)
    return rng.normal(size=(len(codes), 2)) * np.array(sds)[codes][:, None], indicators(codes), None


def confounded(rng, n=30):
    motion = rng.normal(size=(n, 1))
    age = 0.8 * motion + 0.6 * rng.normal(size=(n, 1))
    return 2 * motion * np.array([1, 0.5, 0]) + rng.normal(size=(n, 3)), age, motion


# Of 400 studies at 5%, more than 34 are rejected in one case of a thousand.
MOST_REJECTED = 34 / 400


def test_false_positives_where_the_small_group_spreads_most():
    classic = 0
    for seed in range(100):
        y, x, _ = unequal_groups(np.random.default_rng([seed, 7]))
        left = y - y.mean(0)
        explained = [((Design.of(x).predictors.T @ left[order]) ** 2).sum() for order in permuted_orders(40, 99, seed)]
        classic += (np.array(explained) >= explained[0] - 1e-9).mean() <= 0.05
    assert classic > 20
    assert (p_values(unequal_groups, 400) <= 0.05).mean() <= MOST_REJECTED


def test_false_positives_of_three_groups_with_unequal_spread():
    p = p_values(lambda rng: unequal_groups(rng, (8, 16, 32), (3, 2, 1)), 400)
    assert (p <= 0.05).mean() <= MOST_REJECTED


def test_a_confound_makes_no_false_positives_and_hides_nothing():
    p = p_values(confounded, 400, signs=False)
    assert kstest(p, "uniform").pvalue > 0.001
    taken_for_effects = p_values(lambda rng: (*confounded(rng)[:2], None), 50, signs=False)
    assert (taken_for_effects <= 0.05).mean() > 0.9

    def with_effect(rng):
        y, x, z = confounded(rng)
        return y + 1.5 * x, x, z

    assert (p_values(with_effect, 50, signs=False) <= 0.05).mean() > 0.9


def test_equal_groups_are_tested_with_nearly_the_power_of_the_textbook():
    def make(rng):
        y, x, _ = unequal_groups(rng, (15, 15), (1, 1))
        y[:, 0] += 1.1 * x[:, 0]
        return y, x, None

    def textbook(seed):
        y, x, _ = make(np.random.default_rng([seed, 7]))
        left, predictors = y - y.mean(0), Design.of(x).predictors
        explained = np.array([((predictors.T @ left[order]) ** 2).sum() for order in permuted_orders(30, 99, seed)])
        return (explained >= explained[0] - 1e-9).mean()

    power = (p_values(make, 200) <= 0.05).mean()
    assert power > np.mean([textbook(seed) <= 0.05 for seed in range(200)]) - 0.05
    assert power > 0.6


# --- permutations


def test_permutations_within_strata_leave_each_in_its_stratum():
    strata = np.array([0, 1, 0, 2, 1, 0, 1])
    orders = permuted_orders(7, 2000, 0, strata)
    assert (orders[0] == np.arange(7)).all()
    assert (np.sort(orders, axis=1) == np.arange(7)).all()
    assert (strata[orders] == strata).all()
    # All 3! x 3! x 1 arrangements, about as often each.
    counts = Counter(map(tuple, orders[1:].tolist()))
    assert len(counts) == 36
    assert max(counts.values()) < 2 * min(counts.values()) + 40


def test_arrangements_are_counted():
    assert np.exp(log_arrangements(np.array([0, 0, 0, 1, 1, 1]))) == pytest.approx(20)
    assert np.exp(log_arrangements(np.array([0, 1, 2, 3]))) == pytest.approx(24)
    strata = np.array([0, 0, 1, 1])
    assert np.exp(log_arrangements(np.array([0, 1, 0, 1]), strata)) == pytest.approx(4)
    assert log_arrangements(np.array([0, 0, 1, 1]), strata) == pytest.approx(0)


def test_strata_keep_families_from_passing_for_an_effect():
    def rejected(strata_respected):
        count = 0
        for seed in range(100):
            rng = np.random.default_rng(seed)
            family = np.repeat(np.arange(10), 4)
            y = 2 * rng.normal(size=(10, 2))[family] + rng.normal(size=(40, 2))
            trait = rng.normal(size=10)[family] + 0.3 * rng.normal(size=40)
            orders = permuted_orders(40, 99, seed, family if strata_respected else None)
            count += location_test(y, Design.of(trait[:, None]), orders).p <= 0.05
        return count

    assert rejected(False) > 20
    assert rejected(True) <= 13


# --- dispersion


def test_dispersion_is_that_of_permdisp():
    expected = centre_distances(POINTS, known_codes) / np.sqrt(np.array(SIZES) / (np.array(SIZES) - 1))[known_codes]
    parts = [expected[known_codes == g] for g in range(3)]
    between = sum(len(part) * (part.mean() - expected.mean()) ** 2 for part in parts) / 2
    within = sum(((part - part.mean()) ** 2).sum() for part in parts) / 18
    assert between / within == pytest.approx(PERMDISP_MEDIAN_F, rel=1e-3)


def test_f_and_p_of_dispersion_are_those_of_an_analysis_of_variance():
    orders = permuted_orders(21, 199, 0)
    found = dispersion_test(POINTS, known_codes, orders)
    distances = centre_distances(POINTS, known_codes)

    def anova(values):
        parts = [values[known_codes == g] for g in range(3)]
        between = sum(len(part) * (part.mean() - values.mean()) ** 2 for part in parts) / 2
        return between / (sum(((part - part.mean()) ** 2).sum() for part in parts) / 18)

    expected = np.array([anova(distances[order]) for order in orders])
    assert found.statistic == pytest.approx(expected[0])
    assert found.p == pytest.approx((expected >= expected[0] - 1e-9).mean())
    assert found.means == pytest.approx([distances[known_codes == g].mean() for g in range(3)])


def test_the_spatial_median_has_the_smallest_sum_of_distances():
    median = spatial_median(POINTS)
    around = np.vstack([np.eye(3), -np.eye(3)]) * 0.01
    sums = [np.linalg.norm(POINTS - place, axis=1).sum() for place in [median, *(median + around)]]
    assert np.argmin(sums) == 0
    assert spatial_median(np.array([[1.0], [2.0], [10.0]]))[0] == pytest.approx(2.0, abs=1e-3)


def test_dispersion_is_found_where_it_is_and_seldom_elsewhere():
    def rejected(ratio, sizes=(8, 24)):
        codes, count = np.repeat([0, 1], sizes), 0
        for seed in range(200):
            rng = np.random.default_rng(seed)
            y = rng.normal(size=(len(codes), 2)) * np.where(codes == 0, ratio, 1)[:, None] + 3 * codes[:, None]
            count += dispersion_test(y, codes, permuted_orders(len(codes), 99, seed)).p <= 0.05
        return count / 200

    assert rejected(1) <= 0.1
    assert rejected(2.5) > 0.8


# --- similarity


def test_nearest_neighbours_are_mantels_test():
    found = neighbours_test(POINTS, TRAIT, permuted_orders(21, 1999, 0))
    assert found.correlation == pytest.approx(MANTEL[0])
    assert found.p == pytest.approx(MANTEL[1], abs=0.05)


def test_alike_at_one_end_is_found_at_either_end():
    rng = np.random.default_rng(0)
    trait = np.linspace(0, 1, 30)
    spread = rng.normal(size=(30, 2)) * (0.1 + trait)[:, None]
    orders = permuted_orders(30, 499, 0)
    low, high = one_end_test(spread, trait, orders), one_end_test(spread, 1 - trait, orders)
    assert low.correlation < 0 < high.correlation
    assert max(low.p, high.p) < 0.05
    pairs = np.array([(i, j) for i in range(30) for j in range(i)])
    closeness = -np.linalg.norm(spread[pairs[:, 0]] - spread[pairs[:, 1]], axis=1)
    means = trait[pairs].mean(1)
    assert low.correlation == pytest.approx(spearmanr(closeness, means).statistic)


def test_p_of_similarity_is_that_of_all_permutations():
    points, trait, orders = POINTS[:6], TRAIT[:6], all_orders(6)
    rows, columns = np.triu_indices(6, 1)

    def brute(order):
        moved = points[order]
        distances = np.linalg.norm(moved[rows] - moved[columns], axis=1)
        return spearmanr(-distances, -np.abs(trait[rows] - trait[columns])).statistic

    expected = np.array([brute(order) for order in orders])
    assert neighbours_test(points, trait, orders).p == pytest.approx((expected >= expected[0] - 1e-9).mean())


# --- R^2 without noise


def test_intervals_cover_the_share_that_embeddings_without_noise_have():
    covered, estimates, truths, of_means = [], [], [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        trait = rng.normal(size=(30, 1))
        truth = rng.normal(size=(30, 2)) + 0.7 * trait * [1, 0]
        seen = truth + 0.5 * rng.normal(size=truth.shape)
        noise = draw_noise(np.tile(0.25 * np.eye(2), (30, 1, 1)), 200, seed)
        design, orders = Design.of(trait), permuted_orders(30, 0, 0)
        true = location_test(truth, design, orders).r2
        interval = explained_interval(seen, design, noise)
        covered.append(interval.low <= true <= interval.high)
        estimates.append(interval.r2)
        truths.append(true)
        of_means.append(location_test(seen, design, orders).r2)
    assert 0.9 <= np.mean(covered) <= 0.995
    # Noise makes R^2 of the estimates too small; without it there is no bias.
    assert np.mean(of_means) < np.mean(truths) - 0.02
    assert np.mean(estimates) == pytest.approx(np.mean(truths), abs=0.015)


def test_nothing_but_noise_has_no_known_share():
    rng = np.random.default_rng(0)
    noise = draw_noise(np.tile(np.eye(2), (20, 1, 1)), 200, 0)
    interval = explained_interval(0.9 * rng.normal(size=(20, 2)), Design.of(rng.normal(size=(20, 1))), noise)
    assert np.isnan(interval.r2)
    assert (interval.low, interval.high) == (0, 1)


def test_draws_have_the_covariance_they_are_given():
    covariance = np.array([[1.0, 0.6], [0.6, 0.5]])
    noise = draw_noise(np.stack([covariance, 4 * covariance]), 20000, 0)
    for i, scale in enumerate((1, 4)):
        assert np.cov(noise.draws[:, i].T) == pytest.approx(scale * covariance, rel=0.1)
    assert noise.variances == pytest.approx([1.5, 6.0])
