"""The verdict at the top of a report: states follow from the numbers."""

import copy

import pandas as pd
import pytest

from ntfa import NTFA, Study
from ntfa.report.design import Design
from ntfa.report.evidence import Evidence
from ntfa.report.quality import quality_of
from ntfa.report.verdict import Finding, verdict
from ntfa.study.design import Limit


def findings(model: NTFA, evidence: Evidence, quality: pd.DataFrame | None = None) -> dict[str, Finding]:
    found = verdict(model, evidence, None if quality is None else quality_of(quality))
    return {finding.about: finding for finding in found}


def predictions(mse: float, **columns: float) -> Evidence:
    rows = [
        {
            "participant": p,
            "stimulus": s,
            "correlation": 0.5,
            "mse": mse,
            "mse_of_zero": 2.0,
            "held_out": True,
            **columns,
        }
        for p in "ab"
        for s in "xyz"
    ]
    return Evidence(pd.DataFrame(rows))


@pytest.mark.parametrize(("mse", "state"), [(0.8, "good"), (1.2, "bad")])
def test_unseen_pairs_are_measured_against_the_best_baseline(model: NTFA, mse: float, state: str) -> None:
    unseen = findings(model, predictions(mse, mse_of_stimulus_mean=1.0, mse_of_additive=1.4))["Unseen pairs"]
    assert unseen.state == state
    for number in (f"{mse / 2:.3f}", "0.500", "0.700", "0.50", f"{2 if state == 'good' else 0} of 2"):
        assert number in unseen.sentence


@pytest.mark.parametrize("baselines", [{}, {"mse_of_stimulus_mean": 2.4, "mse_of_additive": 2.6}])
def test_predictions_that_are_worse_than_none_are_bad_whatever_baselines_do(model: NTFA, baselines: dict) -> None:
    assert findings(model, predictions(2.002, **baselines))["Unseen pairs"].state == "bad"
    assert findings(model, predictions(1.9, **baselines))["Unseen pairs"].state == "good"


def test_pairs_that_were_fitted_are_no_unseen_pairs(model: NTFA) -> None:
    evidence = predictions(0.8)
    assert evidence.predictions is not None
    fitted = Evidence(evidence.predictions.assign(held_out=False))
    assert findings(model, fitted)["Unseen pairs"].state == "unknown"
    assert findings(model, Evidence())["Unseen pairs"].state == "unknown"


def test_a_fit_that_has_not_converged_is_bad(study: Study) -> None:
    model = NTFA(n_factors=2, max_epochs=2, random_state=0, uncertainty="laplace").fit(study)
    assert not model.converged_
    assert findings(model, Evidence())["Fit"].state == "bad"


def test_data_are_as_good_as_their_runs(model: NTFA) -> None:
    good = pd.DataFrame({"participant": ["a", "b"], "frames": [10, 10], "frames_kept": [10, 10]})
    assert findings(model, Evidence(), good)["Data"].state == "good"
    assert findings(model, Evidence(), good.assign(frames_kept=[10, 5]))["Data"].state == "mixed"
    assert findings(model, Evidence())["Data"].state == "unknown"


@pytest.mark.parametrize(
    ("kind", "state"), [("nested", "bad"), ("sets apart", "mixed"), ("in one run", None), ("single runs", None)]
)
def test_what_confounds_the_whole_design_comes_first(model: NTFA, kind: str, state: str | None) -> None:
    design = Design("", [Limit(kind, "nobody knows", "Something.", "do better")])
    found = verdict(model, Evidence(), None, design)
    if state is None:
        assert found == verdict(model, Evidence(), None)
    else:
        assert (found[0].about, found[0].state) == ("Design", state)
        assert found[0].sentence == "Nobody knows. Something. Do better."
        assert found[1:] == verdict(model, Evidence(), None)


def test_spoiled_frames_are_told_of(model: NTFA) -> None:
    assert model.frames_["weight"].eq(1).all()
    assert "spoiled" not in findings(model, Evidence())["Data"].sentence
    spoiled = copy.copy(model)
    spoiled.frames_ = model.frames_.assign(weight=1.0)
    spoiled.frames_.loc[[0, 7], "weight"] = 0.01
    data = findings(spoiled, Evidence())["Data"]
    assert data.state == "unknown"
    assert f"2 of {len(model.frames_)} frames" in data.sentence
    spoiled.frames_.loc[:10, "weight"] = 0.01
    data = findings(spoiled, Evidence())["Data"]
    assert (data.state, data.word) == ("mixed", "many spoiled frames")
    assert f"{model.frames_['participant'][0]} run 1 (11 of" in data.sentence
