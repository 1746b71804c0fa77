"""What every page is made of: JSON that cannot break out, tables, files."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ntfa import NTFA, Study
from ntfa.report.data import as_block, as_text, page_data
from ntfa.report.expected import expected_of
from ntfa.report.files import CONTENTS, describe, find_quality, read_labels, safe_file_name, write_labels
from ntfa.report.newcomers import newcomers_of
from ntfa.report.page import Report, Table, _script
from ntfa.report.pairs import pair_table


def test_json_comes_back_and_cannot_end_its_element() -> None:
    data = {"</script>": ["<!--", "&amp;", "\u2028\u2029", "🧠", '"\\', "\ud800"], "n": [1.5, None, True]}
    block = as_block(data)
    assert json.loads(block) == data
    assert not re.search("[<>&\u2028\u2029]", block)
    with pytest.raises(ValueError):
        as_block({"n": float("nan")})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (np.nan, "n/a"),
        (pd.NA, "n/a"),
        (1234567.0, "1234567"),
        (0.123456, "0.1235"),
        (7, "7"),
        ("é", "é"),
    ],
)
def test_values_as_text(value: object, text: str) -> None:
    assert as_text(value) == text


def test_long_tables_say_what_is_left_out() -> None:
    table = Table.of(pd.DataFrame({"a": range(10), "b": list("abcdefghij")}), most=4)
    assert (len(table.rows), table.left_out, table.numeric) == (4, 6, [True, False])


def test_our_script_can_stand_in_a_page() -> None:
    script = _script()
    assert "</" not in script
    assert "innerHTML" not in script
    assert "http" not in script.replace("http://www.w3.org/2000/svg", "")
    assert script.count("\n") < 1200
    assert "\r" not in script


def test_a_report_is_saved_opened_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("<!doctype html><p class=\"a\">'é' 🧠 \ud800</p>")
    report.save_as_html(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == report.html.replace("\ud800", "?")
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert report.open_in_browser().as_uri() == opened[0]
    frame = report._repr_html_()
    assert frame.startswith("<iframe ")
    content = re.search(r'srcdoc="([^"]*)"', frame)
    assert content is not None
    assert html.unescape(content.group(1)) == report.html


@pytest.mark.parametrize(
    "label",
    ["<script>", "../../etc/passwd", "..", ".", "", "a/b", "a\\b", "🧠", "x" * 200, "CON:", "naïve", "a b", "-", "\0"],
)
def test_any_label_gives_a_plain_file_name(label: str) -> None:
    name = safe_file_name(label)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,70}", name)
    assert name != safe_file_name(label + "'")


def test_plain_labels_keep_their_names() -> None:
    assert safe_file_name("sub-01_task-x") == "sub-01_task-x"


def test_labels_come_back_as_they_were(tmp_path: Path) -> None:
    index = pd.Index(["01", "n/a", 'tab\t"quote"\nline'], name="participant")
    table = pd.DataFrame(
        {"site": ["01", "02", "03"], "age": [20.5, np.nan, 3.0], "group": ["a", None, "NA"]}, index=index
    )
    write_labels(tmp_path, {"participant": table})
    back = read_labels(tmp_path, "participant")
    assert back is not None
    assert back.index.tolist() == index.tolist()
    assert back["site"].tolist() == ["01", "02", "03"]
    np.testing.assert_array_equal(back["age"].to_numpy(dtype=float), [20.5, np.nan, 3.0])
    assert [None if pd.isna(value) else value for value in back["group"]] == ["a", None, "NA"]
    assert read_labels(tmp_path, "stimulus") is None


def test_quality_is_found_beside_the_study_and_in_a_derivative(tmp_path: Path) -> None:
    study = tmp_path / "out" / "study"
    study.mkdir(parents=True)
    assert find_quality(study) is None
    for subject in ("sub-01", "sub-02"):
        func = tmp_path / "out" / subject / "func"
        func.mkdir(parents=True)
        table = pd.DataFrame({"participant": [subject], "run": ["01"], "frames": [9]})
        table.to_csv(func / f"{subject}_desc-ntfa_quality.tsv", sep="\t", index=False)
    assert find_quality(study) is None
    (tmp_path / "out" / "dataset_description.json").write_text("{}")
    found = find_quality(study)
    assert found is not None
    assert found["participant"].tolist() == ["sub-01", "sub-02"]
    assert found["run"].tolist() == ["01", "01"]
    found.head(1).to_csv(study / "quality.tsv", sep="\t", index=False)
    own = find_quality(study)
    assert own is not None
    assert len(own) == 1


def test_files_are_listed_with_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.png").write_bytes(b"0" * 1500)
    (tmp_path / "report.html").write_text("")
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "<b>.txt").write_text("12")
    assert describe(tmp_path, leave_out=["report.html"]) == [
        ("<b>.txt", "2 B", ""),
        ("figures/ (1 files)", "1.5 kB", CONTENTS["figures"]),
    ]


def test_many_pairs_have_p_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.normal(size=(7, 2)), [f"s{i}" for i in range(7)], ["z1", "z2"])
    table = table.assign(z1_sd=0.4, z2_sd=0.6)
    whole = pair_table(table)
    monkeypatch.setattr("ntfa.report.pairs.MOST_WITH_EFFECTS", 5)
    some = pair_table(table)
    assert {"effect", "effect_low", "effect_high"} == set(whole) - set(some)
    pd.testing.assert_frame_equal(whole[some.columns.tolist()], some)


def test_newcomers_are_in_the_page_with_their_sessions_and_colours(study: Study, model: NTFA) -> None:
    first = study.participants[0]
    added = model.add(study.select(participants=first), session="ses-02")
    kind = page_data(added, expected_of(added), {}, None)["kinds"]["participant"]
    assert kind["sessions"] == [[0, len(study.participants)]]
    (standing,) = kind["colourings"]
    assert len({colour for colour, _ in standing["rows"][:-1]}) == 1
    assert standing["rows"][-1] != standing["rows"][0]
    shown = newcomers_of(added)
    assert shown is not None
    assert shown.retests is not None
    assert f"{first} ses-02" in shown.table.rows[0]
    assert newcomers_of(model) is None
