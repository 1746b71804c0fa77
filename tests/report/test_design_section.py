"""The report says what the design can and cannot tell, also when it is made again without the study."""

import json
from pathlib import Path

import pytest
from helpers import naming

from ntfa import NTFA, Study
from ntfa.errors import ModelError
from ntfa.report.build import write_report
from ntfa.report.design import FILE, design_of, read_design, write_design


def nested(study: Study) -> Study:
    trials = study.trials
    return Study.from_arrays(
        study.frames, trials.assign(stimulus=trials["participant"] + "-" + trials["stimulus"]), study.coordinates
    )


def test_a_complete_design_says_so(study: Study) -> None:
    design = design_of(study)
    assert "24" in design.recorded
    assert not [limit.kind for limit in design.limits if limit.kind != "single runs"]
    part = design_of(study.select(trials=study.trials.index != study.trials.index[0]))
    assert "23 of 24" in part.recorded


def test_a_nested_design_is_in_the_report_and_stays_there(study: Study, tmp_path: Path, page: type) -> None:
    apart = nested(study)
    model = NTFA(2, max_epochs=2, uncertainty="mean-field", embedding_dim=2, response="network", random_state=0)
    model.fit(apart)
    path = tmp_path / "report.html"
    write_report(model, apart, path)
    design = design_of(apart)
    assert "nested" in [limit.kind for limit in design.limits]
    for _ in range(2):
        text = page(path.read_text(encoding="utf-8")).text
        assert design.recorded in text
        assert all(point in text for point in design.points)
        assert "people and stimuli confounded" in text, "before differences of either are praised"
        write_report(model, None, path)


def test_what_is_kept_comes_back_and_what_is_damaged_is_named(study: Study, tmp_path: Path) -> None:
    assert read_design(tmp_path) is None
    design = design_of(nested(study))
    write_design(tmp_path, design)
    assert read_design(tmp_path) == design
    whole = json.loads((tmp_path / FILE).read_text())
    for damaged in ("{", "[]", "{}", json.dumps({**whole, "limits": [1]}), json.dumps({**whole, "recorded": 1})):
        (tmp_path / FILE).write_text(damaged)
        with pytest.raises(ModelError, match=naming(tmp_path / FILE)):
            read_design(tmp_path)
