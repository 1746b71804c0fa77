"""What a report says of where uncertainty is from."""

import pytest

from ntfa import HTFA, NTFA, Study
from ntfa.report.evidence import Evidence
from ntfa.report.verdict import verdict
from ntfa.report.words import certainty_in_words


def fit(study: Study, uncertainty: str) -> NTFA:
    return NTFA(n_factors=2, max_epochs=4, random_state=0, uncertainty=uncertainty).fit(study)


def test_calibrated_uncertainty_is_said_to_be(study: Study) -> None:
    model = fit(study, "calibrated")
    findings = {finding.about.lower(): finding for finding in verdict(model, Evidence(), None)}
    for kind, share in model.calibration_["reliability"].items():
        assert f"{share:.0%} of the variance between {kind}" in findings[str(kind)].sentence
        assert findings[str(kind)].state != "unknown"
    assert "too small" not in " ".join(certainty_in_words(model))


@pytest.mark.parametrize("uncertainty", ["laplace", "mean-field"])
def test_what_is_too_small_is_said_to_be(study: Study, uncertainty: str) -> None:
    model = fit(study, uncertainty)
    assert "too small" in certainty_in_words(model)[-1]
    states = {finding.about: finding.state for finding in verdict(model, Evidence(), None)}
    assert states["Participants"] == states["Stimuli"] == "unknown"


def test_too_few_to_halve_are_named(study: Study) -> None:
    model = fit(study.select(participants=study.participants[:2]), "calibrated")
    assert "Too few participants" in " ".join(certainty_in_words(model))
    findings = {finding.about: finding for finding in verdict(model, Evidence(), None)}
    assert findings["Participants"].state == "unknown"
    assert "variance between stimuli" in findings["Stimuli"].sentence
    assert "variance between participants" not in findings["Participants"].sentence


def test_models_without_embeddings_say_nothing_of_it(study: Study) -> None:
    model = HTFA(n_factors=2, max_epochs=2, random_state=0).fit(study)
    assert certainty_in_words(model) == []
    assert not {"Participants", "Stimuli"} & {finding.about for finding in verdict(model, Evidence(), None)}
