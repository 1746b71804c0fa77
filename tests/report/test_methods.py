"""The methods paragraph: what was done is in it, with its numbers; what was not done is not."""

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from nilearn.interfaces.fmriprep.load_confounds_strategy import preset_strategies

from ntfa import HTFA, NTFA, TFA, TLSA, Study
from ntfa.errors import ModelError
from ntfa.estimators.saving import summary, versions
from ntfa.report.citations import CITATIONS, references
from ntfa.report.methods import Facts, methods
from ntfa.report.preparation import CONFOUNDS
from ntfa.study.provenance import COUNTS, KEY, Provenance, provenance_of

CITED = {"NTFA": "Sennesh", "HTFA": "Manning et al., 2018", "TFA": "Manning et al., 2014", "TLSA": "Gershman"}
PREPARED = Provenance(
    rest=("fixation",),
    delay=4.5,
    confounds="scrubbing",
    mask="brain masks",
    min_coverage=1.0,
    white_matter_removed=True,
    space="MNI152NLin6Asym",
    preprocessing="fMRIPrep 23.1.4",
    t_r=(0.8,),
    n_participants=11,
    n_runs=44,
    n_volumes=17600,
    n_volumes_kept=17011,
    n_trials=1232,
    n_trial_volumes=9876,
    n_rest_volumes=5432,
    n_trials_dropped=13,
    n_events_truncated=17,
    n_volumes_in_two_events=19,
    n_voxels_in_mask=54321,
    n_voxels_lost=321,
)
CHANGED: dict[str, Any] = {
    "rest": (),
    "include_rest": True,
    "ignore": ("button",),
    "delay": 0.0,
    "trial_duration": 7.5,
    "merge_gap": 2.5,
    "standardize": "run",
    "smoothing_fwhm": 5.5,
    "high_pass": 0.0123,
    "other_grid": "resample",
    "confounds": "compcor",
    "mask": "given",
    "min_coverage": 0.85,
    "white_matter_removed": False,
    "space": None,
    "preprocessing": None,
    "t_r": (0.8, 2.2),
}
NOT_REPORTED = {"stimulus_column", "category_column", "min_rest_frames"}
"""Names of columns, and a limit that a run was refused by: nothing was done to the data with these."""


def facts_of(model: Any, **changes: Any) -> Facts:
    return replace(Facts.of(model, versions()), **changes)


def text_of(facts: Facts) -> str:
    return "\n".join(methods(facts))


def numbers_in(text: str) -> set[str]:
    return set(re.findall(r"\d[\d,]*(?:\.\d+)?", text))


@pytest.fixture(scope="module")
def models(study: Study) -> Callable[..., Any]:
    cache: dict[str, Any] = {}

    def fit(kind: type, **settings: Any) -> Any:
        name = f"{kind.__name__}{sorted(settings.items())}"
        if name not in cache:
            settings = {"uncertainty": "laplace", "response": "network", **settings} if kind is NTFA else settings
            cache[name] = kind(n_factors=2, max_epochs=3, random_state=7, **settings).fit(study)
        return cache[name]

    return fit


@pytest.mark.parametrize("kind", [NTFA, HTFA, TFA, TLSA])
def test_every_model_is_named_cited_and_counted(models: Callable, study: Study, kind: type) -> None:
    model = models(kind)
    text, found = text_of(facts_of(model)), summary(model)
    assert CITED[kind.__name__] in text
    assert not [name for name in CITED if re.search(rf"\b{name}\b", text) and name != kind.__name__]
    wanted = {str(study.n_trials), str(study.n_trial_frames), "6", "4", "300", "2", "3"}
    wanted |= {f"{found['bound_per_datum']:.5f}".lstrip("-"), f"{found['noise_sd']:.4g}"}
    assert wanted <= numbers_in(text)
    assert f"seed {model.seed_}" in text
    assert versions()["torch"] in text


def test_only_what_is_cited_is_listed_and_all_of_it(models: Callable) -> None:
    for facts in (facts_of(models(HTFA)), facts_of(models(NTFA), provenance=PREPARED)):
        paragraphs = methods(facts)
        cited = set(re.findall(r"[A-Z][a-z]+(?: et al\.| & [A-Z][a-z]+), \d{4}", " ".join(paragraphs)))
        assert cited <= CITATIONS.keys()
        assert references(paragraphs) == sorted(CITATIONS[key] for key in cited)


def test_settings_of_the_fit_are_told_apart(models: Callable) -> None:
    base = facts_of(models(NTFA))
    texts = [text_of(base)]
    for name, value in {
        "inference": "mean-field",
        "init": "kmeans",
        "schedule": "paper",
        "noise": "voxel",
        "frames": "equal",
        "n_particles": 9,
        "n_restarts": 8,
        "max_epochs": 777,
        "uncertainty": "mean-field",
    }.items():
        text = text_of(replace(base, params={**base.params, name: value}))
        if isinstance(value, int):
            assert str(value) in numbers_in(text)
        texts.append(text)
    texts.append(text_of(replace(base, n_pooled=41)))
    texts.append(text_of(replace(base, choice=replace(base.choice, participant_dim=37))))
    assert "37" in numbers_in(texts[-1])
    texts.append(text_of(replace(base, choice=replace(base.choice, stimulus_dim=38))))
    assert "38" in numbers_in(texts[-1])
    texts.append(text_of(replace(base, n_spoiled=39)))
    assert "39" in numbers_in(texts[-1])
    assert len(set(texts)) == len(texts)
    assert "Burda et al., 2016" in texts[6]
    assert "Burda et al., 2016" not in texts[0]


def test_individual_loadings_are_described_as_such(models: Callable) -> None:
    model = models(NTFA, response="loadings")
    facts = facts_of(model)
    text = text_of(facts)
    assert not re.search("perceptron|network", text)
    assert "oadings" in text
    assert "Horn, 1965" in text
    asked_for = replace(facts, params={**facts.params, "embedding_dim": (2, 2)})
    assert "Horn, 1965" not in text_of(asked_for)
    assert len({text_of(replace(facts, detail=detail)) for detail in ("none", "group", "individual")}) == 3
    assert facts.detail == "individual"


def test_the_errors_that_a_response_model_was_chosen_by_are_reported(study: Study) -> None:
    model = NTFA(n_factors=2, max_epochs=3, random_state=7, uncertainty="laplace").fit(study)
    errors = set(re.findall(r"\d+\.\d+", model.choice_reason_))
    assert len(errors) == 2
    assert errors <= numbers_in(text_of(facts_of(model)))
    asked_for = NTFA(n_factors=2, max_epochs=3, random_state=7, uncertainty="laplace", response=model.response_).fit(
        study
    )
    assert not errors & numbers_in(text_of(facts_of(asked_for)))


def test_pooling_is_not_claimed_of_a_schedule_without_it(models: Callable) -> None:
    facts = facts_of(models(NTFA))
    facts = replace(facts, params={**facts.params, "schedule": "paper"})
    assert text_of(replace(facts, n_pooled=41)) == text_of(facts)


def test_a_fit_knows_whether_its_voxels_were_pooled(study: Study) -> None:
    model = HTFA(n_factors=2, max_epochs=4, random_state=0, coarse="always").fit(study)
    n_pooled = facts_of(model).n_pooled
    assert n_pooled is not None
    assert n_pooled < study.n_voxels
    assert str(n_pooled) in numbers_in(text_of(facts_of(model)))
    assert facts_of(HTFA(n_factors=2, max_epochs=4, random_state=0).fit(study)).n_pooled is None


def test_loadings_and_networks_are_not_claimed_of_models_without_them(models: Callable) -> None:
    assert "oadings" in text_of(facts_of(models(TLSA)))
    assert '"stimulus"' in text_of(facts_of(models(TLSA)))
    for kind in (NTFA, HTFA, TFA):
        assert "oadings" not in text_of(facts_of(models(kind)))
    for kind in (HTFA, TFA, TLSA):
        assert not re.search("network|perceptron|embedding", text_of(facts_of(models(kind))))


@pytest.mark.parametrize("kind", [HTFA, TFA])
def test_blocks_are_named(models: Callable, kind: type) -> None:
    facts = facts_of(models(kind))
    texts = {
        block: text_of(replace(facts, params={**facts.params, "block": block})) for block in ("trial", "participant")
    }
    assert len(set(texts.values())) == 2


def test_reliability_is_reported_of_what_was_calibrated_alone(models: Callable, study: Study) -> None:
    model = models(NTFA, uncertainty="calibrated")
    facts = facts_of(model)
    text = text_of(facts)
    for share in model.calibration_["reliability"]:
        assert f"{share:.2f}" in numbers_in(text)
    assert facts.calibration is not None
    half = replace(facts, calibration=facts.calibration.loc[["stimuli"]].assign(reliability=0.87))
    assert "0.87 for stimuli" in text_of(half)
    assert "for participants" not in text_of(half)
    nothing = text_of(replace(facts, calibration=facts.calibration.iloc[:0]))
    assert "eliability" not in nothing
    assert "eliability" not in text_of(facts_of(models(NTFA)))


# --- preparation


def test_nothing_is_said_of_a_preparation_that_is_not_known(models: Callable) -> None:
    facts = facts_of(models(NTFA))
    assert facts.provenance is None
    assert len(methods(facts)) == 1
    assert len(methods(replace(facts, provenance=PREPARED))) == 2


def test_every_number_of_a_preparation_is_reported(models: Callable) -> None:
    text = methods(facts_of(models(NTFA), provenance=PREPARED))[0]
    counts = {name: value for name, value in PREPARED.as_notes().items() if name.startswith("n_")}
    counts["n_volumes_lost"] = counts["n_volumes"] - counts.pop("n_volumes_kept")
    assert {f"{value:,}" for value in counts.values()} <= numbers_in(text)
    assert {"0.8", "4.5", f"{PREPARED.n_voxels_in_mask - PREPARED.n_voxels_lost:,}"} <= numbers_in(text)
    assert '"fixation"' in text
    assert PREPARED.space in text
    assert PREPARED.preprocessing in text


def test_every_setting_of_a_preparation_makes_a_difference(models: Callable) -> None:
    reported = {field.name for field in fields(Provenance) if not field.name.startswith("n_")}
    assert CHANGED.keys() == reported - NOT_REPORTED
    facts = facts_of(models(NTFA), provenance=PREPARED)
    for name, value in CHANGED.items():
        text = methods(replace(facts, provenance=replace(PREPARED, **{name: value})))[0]
        assert text != methods(facts)[0], name
        if isinstance(value, float) and value:
            assert {f"{value:g}", f"{100 * value:g}"} & numbers_in(text), name


def test_settings_alone_as_earlier_versions_kept_them_are_enough(models: Callable) -> None:
    (first, _) = methods(facts_of(models(NTFA), provenance=Provenance.from_notes({"delay": 2.25, "rest": ["rest"]})))
    assert "2.25" in numbers_in(first)
    assert "None" not in first


def test_confounds_are_described_as_nilearn_does_them() -> None:
    for name in ("simple", "scrubbing", "compcor"):
        strategy, text = preset_strategies[name], CONFOUNDS[name]
        assert strategy["motion"] == "full"
        assert "24" in numbers_in(text)
        assert ("scrub" in strategy["strategy"]) == ("DVARS" in text)
        assert ("compcor" in strategy["strategy"]) == ("CompCor" in text)
        assert strategy["global_signal"] is None
        assert "global" not in text
    scrubbing = preset_strategies["scrubbing"]
    assert (scrubbing["scrub"], scrubbing["wm_csf"]) == (5, "full")
    assert {str(scrubbing["fd_threshold"]), str(scrubbing["std_dvars_threshold"])} <= numbers_in(CONFOUNDS["scrubbing"])
    assert preset_strategies["compcor"]["compcor"] == "anat_combined"
    assert preset_strategies["compcor"]["n_compcor"] == "all"


# --- from study to paragraph


def quality(**columns: Any) -> pd.DataFrame:
    table = {name: [3, 4] for name in COUNTS.values()}
    return pd.DataFrame({"participant": ["a", "a"], "t_r": [2.0, 2.0], **table, **columns})


def test_counts_are_those_of_the_quality_table() -> None:
    found = Provenance().with_counts(quality(frames=[100, 90], frames_kept=[99, 80]), 50, 5)
    assert (found.n_participants, found.n_runs, found.t_r) == (1, 2, (2.0,))
    assert (found.n_volumes, found.n_volumes_kept, found.n_trials, found.n_voxels_lost) == (190, 179, 7, 5)


def test_a_record_survives_json_a_saved_study_and_a_saved_model(study: Study, tmp_path: Path) -> None:
    assert Provenance.from_notes(json.loads(json.dumps(PREPARED.as_notes()))) == PREPARED
    known = replace(study, notes={KEY: PREPARED.as_notes(), "mine": 1})
    known.save(tmp_path / "study", notes={"yours": 2})
    again = Study.open(tmp_path / "study").select(participants=study.participants[:3])
    assert (again.notes["mine"], again.notes["yours"]) == (1, 2)
    assert provenance_of(again.notes) == PREPARED
    model = HTFA(n_factors=2, max_epochs=2, random_state=0).fit(again)
    model.save(tmp_path / "model")
    assert methods(facts_of(HTFA.load(tmp_path / "model"))) == methods(facts_of(model))
    assert PREPARED.space in methods(facts_of(model))[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("delay", "3"), ("delay", np.inf), ("n_runs", 1.5), ("n_runs", True), ("rest", "x"), ("rest", [1]), ("space", 3)],
)
def test_a_record_that_makes_no_sense_is_refused_in_a_model_and_left_out_of_a_study(
    study: Study, models: Callable, tmp_path: Path, name: str, value: Any
) -> None:
    broken = {**PREPARED.as_notes(), name: value}
    with pytest.raises(ValueError, match=name):
        Provenance.from_notes(broken)
    assert provenance_of({KEY: broken}) is None
    models(TFA).save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), KEY: broken}))
    with pytest.raises(ModelError, match=name):
        TFA.load(tmp_path / "model")


def test_a_model_of_an_earlier_version_has_no_record(models: Callable, tmp_path: Path) -> None:
    models(TFA).save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    del config[KEY], config["n_pooled"]
    path.write_text(json.dumps(config))
    facts = facts_of(TFA.load(tmp_path / "model"))
    assert (facts.provenance, facts.n_pooled) == (None, None)
