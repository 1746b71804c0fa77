"""Answers beside the results of a fit: kept complete, read back, shown in the report."""

import pandas as pd
import pytest
from helpers import naming
from matplotlib.figure import Figure

from ntfa.errors import ModelError
from ntfa.report.answers import Answer, read_answers, write_answer
from ntfa.report.build import write_report

EVIL = "<script>alert('x')</script>"


def an_answer(**changes):
    figure = Figure(figsize=(1, 1))
    table = pd.DataFrame({"column": ["age", EVIL], "p": [0.01234567, None]})
    settings = {
        "name": "test age",
        "title": "Does age matter?",
        "sentences": [f"It does {EVIL}."],
        "cautions": ["Only nine people."],
        "tables": {"result": (table, "One row per question.")},
        "figures": {"scatter": (figure, "Age and distance.")},
        "command": ["ntfa", "test"],
    }
    return Answer(**(settings | changes))


def test_what_is_written_is_read_back(tmp_path):
    folder = write_answer(tmp_path, an_answer())
    (shown,) = read_answers(tmp_path)
    assert (shown.name, shown.title, shown.cautions) == (folder.name, "Does age matter?", ["Only nine people."])
    name, table, caption = shown.tables[0]
    assert (name, table.columns, caption) == ("result", ["column", "p"], "One row per question.")
    assert [row[0] for row in table.rows] == ["age", EVIL]
    assert table.rows[0][1] == "0.0123"
    assert shown.pictures[0].png.startswith(b"\x89PNG")
    assert (folder / "scatter.svg").stat().st_size > 0


def test_asked_again_an_answer_is_replaced(tmp_path):
    write_answer(tmp_path, an_answer())
    write_answer(tmp_path, an_answer(title="Again?", figures={}))
    (shown,) = read_answers(tmp_path)
    assert shown.title == "Again?"
    assert not shown.pictures


@pytest.mark.parametrize(
    "content", ["{", "{}", '{"title": 3, "sentences": [], "cautions": [], "tables": {}, "figures": {}}']
)
def test_damaged_answers_are_named(tmp_path, content):
    folder = write_answer(tmp_path, an_answer())
    (folder / "answer.json").write_text(content)
    with pytest.raises(ModelError, match=naming("answer.json")):
        read_answers(tmp_path)


def test_names_of_tables_are_no_paths(tmp_path):
    folder = write_answer(tmp_path, an_answer())
    text = (folder / "answer.json").read_text().replace('"result"', '"../../secret"')
    (folder / "answer.json").write_text(text)
    with pytest.raises(ModelError, match=naming("answer.json")):
        read_answers(tmp_path)


def test_the_report_shows_them(tmp_path, made_up_study, made_up_model, page):
    study = made_up_study(4, 5)
    model = made_up_model(study)
    model.save(tmp_path / "results")
    write_answer(tmp_path / "results", an_answer())
    write_report(model, study, tmp_path / "results" / "report.html")
    seen = page((tmp_path / "results" / "report.html").read_text())
    assert "answers" in seen.sections
    assert "Does age matter?" in seen.text
    assert "Only nine people." in seen.text
    assert all(EVIL not in str(attributes) for _, attributes in seen.tags)
