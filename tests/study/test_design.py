"""What designs cannot tell apart, by designs that are made to be so."""

import itertools

import numpy as np
import pandas as pd
import pytest
from helpers import assert_names

from ntfa.study.design import limits_of, share_recorded
from ntfa.study.rest import ROWS_OF_REST


def table(shown: dict[str, str], runs: int = 1, in_run: dict[str, int] | None = None) -> pd.DataFrame:
    """Trials of participants who saw these stimuli (a letter each) once in every run, or in the run that is said."""
    rows = [
        (who, stimulus, f"run-{run}")
        for who, stimuli in shown.items()
        for run in range(1, runs + 1)
        for stimulus in stimuli
        if in_run is None or in_run.get(stimulus, run) == run
    ]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "run"])
    start = trials.groupby("participant").cumcount()
    return trials.assign(start=start, stop=start + 1)


def kinds(trials: pd.DataFrame) -> list[str]:
    return [limit.kind for limit in limits_of(trials)]


def test_a_crossed_design_of_several_runs_has_no_limits() -> None:
    assert kinds(table({"p": "ab", "q": "ab", "r": "ab"}, runs=2)) == []
    assert kinds(table({"p": "ab", "q": "bc", "r": "ca"}, runs=2)) == [], "incomplete, but connected"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ({"p": "ab", "q": "cd", "r": "ef"}, ["nested"]),
        ({"p": "ab", "q": "ab", "r": "cd", "s": "cd"}, ["sets apart"]),
        ({"p": "ab", "q": "abc", "r": "ab"}, ["seen by one"]),
        ({"p": "ab", "q": "ab", "r": "a"}, ["saw one"]),
        ({"p": "ab"}, ["one participant"]),
        ({"p": "a", "q": "a"}, ["one stimulus"]),
    ],
)
def test_what_confounds_people_and_stimuli_is_recognised(shown: dict[str, str], expected: list[str]) -> None:
    assert kinds(table(shown, runs=2)) == expected


def test_those_concerned_are_named() -> None:
    (limit,) = limits_of(table({"p": "ab", "q": "abc", "r": "ab"}, runs=2))
    assert_names(limit.cannot, "'c'")
    (limit,) = limits_of(table({"p": "ab", "q": "ab", "r": "cd", "s": "cd"}, runs=2))
    assert_names(limit.cannot, 2, "'p'", "'q'", "'r'", "'s'")
    assert limit.can
    assert limit.remedy


def test_sets_apart_are_those_of_brute_force() -> None:
    """Whoever can be reached over shared stimuli, in however many steps, is in the same set."""
    random = np.random.default_rng(0)
    for _ in range(50):
        seen = random.random((6, 7)) < 0.2
        seen[seen.sum(1) == 0, 0] = True
        shown = {f"p{i}": "".join("abcdefg"[j] for j in np.flatnonzero(row)) for i, row in enumerate(seen)}
        reach = np.linalg.matrix_power((seen.astype(int) @ seen.T > 0).astype(int), 6) > 0
        n_sets = len({tuple(row) for row in reach})
        several = len(set("".join(shown.values()))) > 1
        apart = any(kind in ("nested", "sets apart") for kind in kinds(table(shown, runs=2)))
        assert apart == (n_sets > 1 and several)


def test_a_stimulus_in_one_run_of_several_is_named() -> None:
    everybody = {"p": "abc", "q": "abc"}
    (limit,) = limits_of(table(everybody, runs=3, in_run={"c": 2}))
    assert limit.kind == "in one run"
    assert_names(limit.cannot, "'c'")
    assert kinds(table(everybody, runs=3, in_run={"a": 1, "b": 2, "c": 3})) == ["in one run"]


def test_stimuli_that_change_runs_from_person_to_person_are_fine() -> None:
    one = table({"p": "ab"}, runs=2, in_run={"a": 1, "b": 2})
    other = table({"q": "ab"}, runs=2, in_run={"a": 2, "b": 1})
    assert kinds(pd.concat([one, other], ignore_index=True)) == []


def test_runs_of_one_name_in_two_sessions_are_two() -> None:
    trials = table({"p": "ab", "q": "ab"})
    sessions = pd.concat([trials.assign(session=name) for name in ("1", "2")], ignore_index=True)
    assert kinds(trials) == ["single runs"]
    assert kinds(sessions) == []


def test_a_single_run_is_no_matter_where_its_rest_is_known() -> None:
    trials = table({"p": "ab", "q": "ab"})
    (limit,) = limits_of(trials)
    assert_names(limit.cannot, "'p'", "'q'")
    known = trials.assign(**{ROWS_OF_REST[0]: 2, ROWS_OF_REST[1]: 3})
    assert kinds(known) == []
    half = known.where(known["participant"] == "p", other=known.drop(columns=list(ROWS_OF_REST)))
    (limit,) = limits_of(half)
    assert_names(limit.cannot, "'q'")
    assert "'p'" not in limit.cannot


def test_pairs_are_counted() -> None:
    shown = {"p": "ab", "q": "b", "r": "abc"}
    trials = table(shown, runs=2)
    pairs = {pair for pair in itertools.product(shown, "abc") if pair[1] in shown[pair[0]]}
    assert share_recorded(trials) == (len(pairs), 9)
