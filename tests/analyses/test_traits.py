"""`ntfa.test`: columns matched with labels, what is refused, and what comes out, against simulated truth."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers import assert_names, naming

import ntfa
from ntfa.analyses.columns import columns_for, participant_of
from ntfa.analyses.permutations import Design, location_test, permuted_orders
from ntfa.analyses.traits import COLUMNS, holm
from ntfa.errors import ModelError, StudyError

FEW = {"n_permutations": 199, "n_draws": 99}


def embeddings(n=24, dim=2, seed=0, sd=0.2, prefix="sub-", freedom=100):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, dim))
    table = {f"z{i + 1}": points[:, i] for i in range(dim)} | {f"z{i + 1}_sd": np.full(n, sd) for i in range(dim)}
    found = pd.DataFrame(table, index=pd.Index([f"{prefix}{i + 1:02d}" for i in range(n)], name="participant"))
    found.attrs["degrees_of_freedom"] = freedom
    return found


def labels(points, **columns):
    return pd.DataFrame({"participant_id": list(points.index), **columns})


@pytest.fixture
def people():
    """Twenty-four people, the second half of whom are patients and lie elsewhere; age goes with z2."""
    points = embeddings()
    points.iloc[12:, 0] += 3
    rng = np.random.default_rng(1)
    group = ["control"] * 12 + ["patient"] * 12
    age = 40 + 8 * points["z2"].to_numpy() + rng.normal(size=24)
    table = labels(points, group=group, age=age, site=["x", "y", "z"] * 8, family=[f"f{i // 2}" for i in range(24)])
    return points, table


# --- results


def test_groups_and_numbers_that_matter_are_found(people):
    points, table = people
    groups = ntfa.test(points, "group", table=table, **FEW)
    assert list(groups.table.columns) == list(COLUMNS)
    assert groups.table["test"].tolist() == ["location", "dispersion"]
    assert groups.table["p"][0] == pytest.approx(1 / 200)
    assert groups.table["p"][1] > 0.05
    numbers = ntfa.test(points, "age", table=table, **FEW)
    assert numbers.table["test"].tolist() == ["regression", "nearest neighbours", "alike at one end"]
    assert numbers.table["p"][0] < 0.05
    for found in (groups, numbers):
        assert (found.table["r2_low"] < found.table["r2"])[0]
        assert (found.table["r2"] < found.table["r2_high"])[0]
        assert found.table["n"].eq(24).all()


def test_the_row_is_what_the_parts_say(people):
    points, table = people
    found = ntfa.test(points, "age", table=table, confounds=["group"], random_state=3, **FEW).table.iloc[0]
    design = Design.of(table[["age"]].to_numpy(), (table["group"] == "patient").to_numpy(dtype=float)[:, None])
    expected = location_test(points[["z1", "z2"]].to_numpy(), design, permuted_orders(24, 199, 3))
    assert (found["statistic"], found["r2_means"], found["p"]) == pytest.approx(
        (expected.statistic, expected.r2, expected.p)
    )
    assert found["r2_chance"] == pytest.approx(1 / 22)


def test_a_confound_explains_what_is_its_own(people):
    points, table = people
    scan = points["z2"].to_numpy() + 0.05 * np.random.default_rng(2).normal(size=24)
    table = table.assign(motion=scan)
    assert ntfa.test(points, "age", table=table, confounds="motion", **FEW).table["p"][0] > 0.05


def test_pairs_of_groups_are_adjusted_by_holm():
    points = embeddings(30)
    points.iloc[20:] += [6, 0, 0, 0]
    table = labels(points, task=["a"] * 10 + ["b"] * 10 + ["c"] * 10)
    found = ntfa.test(points, "task", table=table, **FEW)
    location = found.table[found.table["test"] == "location"].set_index("compared")
    assert location["p_adjusted"]["a - b"] > 0.05
    assert max(location["p_adjusted"][["all groups", "a - c", "b - c"]]) < 0.05
    assert location["n"].to_dict() == {"all groups": 30, "a - b": 20, "a - c": 20, "b - c": 20}
    pairs = location.iloc[1:]
    assert pairs["p_adjusted"].to_numpy() == pytest.approx(holm(pairs["p"].to_numpy()))
    assert_names(found.sentence, "a - c", "b - c")
    assert "a - b" not in found.sentence


def test_holm_by_hand():
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    assert holm(np.array([0.5, 0.9])) == pytest.approx([1.0, 1.0])


def test_the_same_seed_gives_the_same_table(people):
    points, table = people
    one, same, other = (ntfa.test(points, "site", table=table, random_state=seed, **FEW).table for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(one, same)
    assert not one.equals(other)


def test_numbers_are_groups_only_if_told(people):
    points, table = people
    table = table.assign(code=(table["group"] == "patient").astype(int))
    as_numbers = ntfa.test(points, "code", table=table, **FEW)
    assert as_numbers.table["test"][0] == "regression"
    assert_names(" ".join(as_numbers.cautions), "code", "2")
    as_groups = ntfa.test(points, "code", table=table, groups=True, **FEW)
    assert as_groups.table["compared"][0] == "0 - 1"
    # Two groups have the same share of variance whichever way they are coded.
    assert as_groups.table["r2_means"][0] == pytest.approx(as_numbers.table["r2_means"][0])


def test_point_estimates_have_no_interval(people):
    points, table = people
    found = ntfa.test(points[["z1", "z2"]], "group", table=table, **FEW).table.iloc[0]
    assert found["r2"] == found["r2_means"]
    assert np.isnan(found["r2_low"])


def test_stimuli_and_their_ratings():
    points = embeddings(12, prefix="stim ").rename_axis("stimulus")
    table = pd.DataFrame({"stimulus": points.index, "valence": points["z1"] + 1})
    found = ntfa.test(points, "valence", table=table, kind="stimulus", **FEW)
    assert found.table["p"][0] < 0.05
    assert_names(found.sentence, "stimuli", "valence")


def test_a_fitted_model_and_its_study(study):
    model = ntfa.NTFA(n_factors=3, max_epochs=12, random_state=0, embedding_dim=2).fit(study)
    with pytest.raises(StudyError, match=naming("group")):
        ntfa.test(model, "group", table=study, **FEW)  # six people in groups of two
    trials = study.trials.assign(age=study.trials["participant"].str[-1].astype(float))
    known = ntfa.Study.from_arrays(study.frames, trials, study.coordinates)
    assert ntfa.test(model, "age", table=known, **FEW).table["n"][0] == 6


# --- repeated sessions and strata


def with_sessions(points):
    later = points.assign(z1=points["z1"] + 0.1, z2=points["z2"] + 0.1)
    later.index = [f"{label} ses-02" for label in points.index]
    both = pd.concat([points, later])
    both.attrs = points.attrs
    return both


def test_sessions_with_one_value_are_averaged(people):
    points, table = people
    both = with_sessions(points)
    found = ntfa.test(both, "group", table=table, **FEW)
    assert found.table["n"].eq(24).all()
    assert found.embeddings.loc["sub-03", "z1"] == pytest.approx(points.loc["sub-03", "z1"] + 0.05)
    assert found.embeddings.loc["sub-03", "z1_sd"] == pytest.approx(0.2 / np.sqrt(2))
    assert_names(" ".join(found.cautions), "48", "24")


def test_sessions_that_differ_are_compared_within_people(people):
    points, _ = people
    both = with_sessions(points)
    # People lie far apart, and a session moves everybody by little: seen only within people.
    table = pd.DataFrame({"participant": both.index, "drug": ["before"] * 24 + ["after"] * 24})
    found = ntfa.test(both, "drug", table=table, **FEW)
    assert found.table["p"][0] == pytest.approx(1 / 200)
    assert (
        ntfa.test(both.set_axis(range(48)), "drug", table=table.assign(participant=range(48)), **FEW).table["p"][0]
        > 0.5
    )


def test_spread_of_sessions_is_that_between_people(people):
    points, _ = people
    calm = points.assign(z1=points["z1"] / 4, z2=points["z2"] / 4).set_axis([f"{p} ses-02" for p in points.index])
    both = pd.concat([points, calm])
    table = pd.DataFrame({"participant": both.index, "drug": ["before"] * 24 + ["after"] * 24})
    assert ntfa.test(both, "drug", table=table, **FEW).table["p"][1] < 0.05


def test_labels_of_sessions():
    assert participant_of("sub-01 ses-02") == "sub-01"
    assert participant_of("sub-01_ses-later") == "sub-01"
    assert participant_of("sub-01") == "sub-01"
    assert participant_of("sub-01 later", ["sub-01"]) == "sub-01"
    assert participant_of("film 2", ["film 1"]) == "film 2"


def test_strata_without_anything_to_permute_are_refused(people):
    points, table = people
    table = table.assign(of_family=[f"k{i % 2}" for i in np.arange(24) // 2])
    with pytest.raises(StudyError, match=naming("of_family", "family")):
        ntfa.test(points, "of_family", table=table, strata="family", **FEW)
    found = ntfa.test(points, "age", table=table, strata="family", **FEW)
    assert_names(found.sentence, "family")


def test_few_arrangements_are_said():
    points = embeddings(6)
    found = ntfa.test(points, "group", table=labels(points, group=list("aaabbb")), **FEW)
    assert_names(" ".join(found.cautions), "20", "0.05")


# --- what is refused


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (["a"] * 22 + ["b"] * 2, ("b", "2")),
        (["a"] * 24, ("a", "24")),
        ([5.0] * 24, ("5.0",)),
        ([f"{i} years" for i in range(24)], ("24",)),
        ([1.0, 2, 3, 4, 5] + [np.nan] * 19, ("5", "6")),
        ([np.inf] + [1.0, 2.0] * 11 + [3.0], ("sub-01",)),
    ],
)
def test_what_cannot_be_tested_is_refused(values, named):
    points = embeddings()
    with pytest.raises(StudyError, match=naming("trait", *named)):
        ntfa.test(points, "trait", table=labels(points, trait=values), **FEW)


def test_columns_that_are_one_another_are_refused(people):
    points, table = people
    table = table.assign(years=table["age"] * 2 + 1)
    with pytest.raises(StudyError, match=naming("age", "years")):
        ntfa.test(points, "age", table=table, confounds=["years"], **FEW)
    with pytest.raises(StudyError, match=naming("age")):
        ntfa.test(points, "age", table=table, confounds=["age"], **FEW)
    with pytest.raises(StudyError, match=naming("age", "24")):
        ntfa.test(points, "age", table=table.assign(who=[f"w{max(i, 1)}" for i in range(24)]), confounds=["who"], **FEW)


@pytest.mark.parametrize("wrong", [{"n_permutations": 5}, {"n_draws": 0.5}, {"kind": "voxel"}, {"random_state": -1}])
def test_wrong_settings_are_named(people, wrong):
    points, table = people
    with pytest.raises(ModelError, match=naming(*wrong)):
        ntfa.test(points, "age", table=table, **(FEW | wrong))


# --- cautions


def test_missing_values_leave_people_out_and_are_said(people):
    points, table = people
    table.loc[[3, 7], "age"] = np.nan
    found = ntfa.test(points, "age", table=table, **FEW)
    assert found.table["n"].eq(22).all()
    assert_names(" ".join(found.cautions), "2", "24", "age", "sub-04", "sub-08")


def test_noise_that_goes_with_the_column_is_said(people):
    points, table = people
    noisy = points.assign(z1_sd=np.where(table["group"] == "patient", 0.6, 0.2))
    assert_names(" ".join(ntfa.test(noisy, "group", table=table, **FEW).cautions), "patient", "control")
    ordered = points.assign(z1_sd=0.1 + table["age"].rank().to_numpy() / 50)
    assert any("noisier" in text for text in ntfa.test(ordered, "age", table=table, **FEW).cautions)
    assert not any("noisier" in text for text in ntfa.test(points, "age", table=table, **FEW).cautions)


def test_one_person_who_decides_is_named(people):
    points, table = people
    table.loc[5, "age"] = 400
    assert_names(" ".join(ntfa.test(points, "age", table=table, **FEW).cautions), "sub-06")


def test_mostly_noise_is_said(people):
    points, table = people
    drowned = points.assign(z1_sd=1.5, z2_sd=1.5)
    drowned.attrs = {}
    found = ntfa.test(drowned, "age", table=table, **FEW)
    assert len(found.cautions) == 2
    assert (found.table["r2_low"][0], found.table["r2_high"][0]) == (0, 1)


# --- tables


def test_labels_match_with_and_without_prefix():
    index = pd.Index(["sub-01", "sub-02"])
    for given in (["01", "02"], ["sub-02", "sub-01"], [" 02 ", "sub-01"]):
        table = pd.DataFrame({"participant_id": given, "age": [1.0, 2.0]})
        expected = [table["age"][[g.strip().removeprefix("sub-") for g in given].index(k)] for k in ("01", "02")]
        assert columns_for(index, ["age"], table, "participant")["age"].tolist() == expected
    bare = columns_for(
        pd.Index(["7", "8"]), ["age"], pd.DataFrame({"participant": [8, 7], "age": [1, 2]}), "participant"
    )
    assert bare["age"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"participant_id": ["sub-01", "sub-2"], "age": [1, 2]}, ("sub-02", "sub-2", "age")),
        ({"participant_id": ["sub-01"], "age": [1]}, ("sub-02", "1 of 2")),
        ({"participant_id": ["sub-01", "sub-02", "02"], "age": [1, 2, 3]}, ("sub-02", "02")),
        ({"participant_id": ["sub-01", "sub-01"], "age": [1, 2]}, ("sub-01",)),
        ({"participant_id": ["sub-01", "sub-02"], "Age": [1, 2]}, ("age", "Age")),
        ({"name": ["sub-01", "sub-02"], "age": [1, 2]}, ("participant",)),
    ],
)
def test_tables_that_do_not_fit_name_what_does_not(table, named):
    named = [name for name in named if name != "age" or "Age" in table]
    with pytest.raises(StudyError, match=naming(*named)):
        columns_for(pd.Index(["sub-01", "sub-02"]), ["age"], pd.DataFrame(table), "participant")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("people.tsv", "participant_id\tage\tsite\nsub-01\t31\t01\nsub-02\tn/a\t02\n"),
        ("people.csv", "participant,age,site\n01,31,01\n02,,02\n"),
        ("people.csv", "participant;age;site\n01;31;01\n02;NA;02\n"),
    ],
)
def test_files_are_read(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    found = columns_for(pd.Index(["sub-01", "sub-02"]), ["age", "site"], tmp_path / name, "participant")
    assert found["age"].iloc[0] == 31
    assert np.isnan(found["age"].iloc[1])
    assert found["site"].tolist() == ["01", "02"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"participant\tage\nsub-01\n", b'participant\t"age\n'])
def test_damaged_files_are_named(tmp_path, content):
    (tmp_path / "people.tsv").write_bytes(content)
    with pytest.raises(StudyError, match=naming("people.tsv")):
        columns_for(pd.Index(["sub-01"]), ["age"], tmp_path / "people.tsv", "participant")
    with pytest.raises(StudyError, match=naming("missing.tsv")):
        columns_for(pd.Index(["sub-01"]), ["age"], tmp_path / "missing.tsv", "participant")


# --- pictures


def test_pictures_mark_centres_of_groups_and_the_direction_of_numbers(people):
    points, table = people
    ax = ntfa.test(points, "group", table=table, **FEW).plot()
    centres = [line.get_xydata()[0] for line in ax.lines if line.get_marker() == "D"]
    expected = points[["z1", "z2"]].groupby((["control"] * 12) + ["patient"] * 12).mean().to_numpy()
    assert np.array(centres) == pytest.approx(expected)
    ax = ntfa.test(points, "age", table=table, **FEW).plot()
    arrow = next(child for child in ax.get_children() if getattr(child, "arrow_patch", None) is not None)
    across, along = np.subtract(arrow.xy, arrow.xyann)
    slopes = [np.polyfit(table["age"], points[axis], 1)[0] for axis in ("z1", "z2")]
    assert (across, along) == pytest.approx(np.array(slopes) * np.ptp(table["age"]))
    plt.close("all")


def test_pictures_of_one_dimension(people):
    points, table = people
    line = points[["z1", "z1_sd"]]
    ax = ntfa.test(line, "group", table=table, **FEW).plot()
    dashed = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "--"]
    assert dashed == pytest.approx([points["z1"][:12].mean(), points["z1"][12:].mean()])
    ax = ntfa.test(line, "age", table=table, **FEW).plot()
    assert ax.get_xlabel() == "age"
    plt.close("all")
