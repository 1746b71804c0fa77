"""What a report says of where uncertainty is from."""

import pytest

from ntfa import HTFA, NTFA, Study
from ntfa.report.words import separation_in_words


def fit(study: Study, uncertainty: str) -> NTFA:
    return NTFA(n_factors=2, max_epochs=4, random_state=0, uncertainty=uncertainty).fit(study)


def test_calibrated_uncertainty_is_said_to_be(study: Study) -> None:
    model = fit(study, "calibrated")
    text = " ".join(separation_in_words(model))
    for kind, share in model.calibration_["reliability"].items():
        assert f"{share:.0%} of the variance between {kind}" in text
    assert "too small" not in text


@pytest.mark.parametrize("uncertainty", ["laplace", "mean-field"])
def test_what_is_too_small_is_said_to_be(study: Study, uncertainty: str) -> None:
    model = fit(study, uncertainty)
    assert "too small" in separation_in_words(model)[-1]


def test_too_few_to_halve_are_named(study: Study) -> None:
    model = fit(study.select(participants=study.participants[:2]), "calibrated")
    text = " ".join(separation_in_words(model))
    assert "Too few participants" in text
    assert "variance between stimuli" in text
    assert "variance between participants" not in text


def test_models_without_embeddings_say_nothing_of_it(study: Study) -> None:
    assert separation_in_words(HTFA(n_factors=2, max_epochs=2, random_state=0).fit(study)) == []
