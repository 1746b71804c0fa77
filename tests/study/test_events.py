"""Events tables: read as BIDS writes them, and refused by file and row."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import assert_names, naming

from ntfa.errors import StudyError
from ntfa.study.events import join_tables, read_events, read_table

HEADER = "onset\tduration\ttrial_type\n"


def written(folder: Path, text: str, encoding: str = "utf-8") -> str:
    path = folder / "sub-01_events.tsv"
    path.write_bytes(text.encode(encoding))
    return str(path)


def read(folder: Path, text: str, encoding: str = "utf-8") -> pd.DataFrame:
    path = written(folder, text, encoding)
    return read_events(path, path)


def error_of(folder: Path, text: str, encoding: str = "utf-8") -> str:
    with pytest.raises(StudyError) as error:
        read(folder, text, encoding)
    message = str(error.value)
    assert message.startswith(str(folder / "sub-01_events.tsv"))
    assert "\n" not in message
    return message.removeprefix(str(folder / "sub-01_events.tsv"))


# --- what is read


def test_onsets_and_durations_are_numbers_in_order_and_labels_are_kept(tmp_path: Path) -> None:
    events = read(tmp_path, "trial_type\tonset\tduration\tsaid\nb\t4\t1.5\tyes\na\t-2.5\t0\tno\n")
    assert events["onset"].tolist() == [-2.5, 4.0]
    assert events["duration"].tolist() == [0.0, 1.5]
    assert events["onset"].dtype == events["duration"].dtype == np.float64
    assert events["trial_type"].tolist() == ["a", "b"]
    assert events["said"].tolist() == ["no", "yes"]


def test_events_at_one_time_stay_in_their_order(tmp_path: Path) -> None:
    rows = "".join(f"{onset}\t1\t{name}\n" for onset, name in [(3, "d"), (1, "a"), (3, "e"), (1, "b"), (1, "c")])
    assert "".join(read(tmp_path, HEADER + rows)["trial_type"]) == "abcde"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "2"], [1, 2]),
        (["1", "2.5"], [1.0, 2.5]),
        (["-3", "+4"], [-3, 4]),
        (["0", "0.5"], [0.0, 0.5]),
        (["3", "n/a"], [3.0, np.nan]),
        (["01", "02"], ["01", "02"]),
        (["01", "10"], ["01", "10"]),
        (["-01", "10"], ["-01", "10"]),
        (["1", "two"], ["1", "two"]),
        (["1", "nan"], ["1", "nan"]),
        (["NA", "None"], ["NA", "None"]),
        (["True", "False"], ["True", "False"]),
    ],
)
def test_numbers_are_numbers_and_labels_stay_text(tmp_path: Path, values: list[str], expected: list[object]) -> None:
    table = "onset\tduration\tlabel\n" + "".join(f"{i}\t1\t{value}\n" for i, value in enumerate(values))
    found = read(tmp_path, table)["label"]
    assert pd.api.types.is_numeric_dtype(found) == isinstance(expected[0], int | float)
    pd.testing.assert_series_equal(found, pd.Series(expected, name="label"), check_dtype=False)


def test_columns_that_must_be_text_stay_text(tmp_path: Path) -> None:
    path = written(tmp_path, "participant_id\tage\n1\t20\n2\t30\n")
    table = read_table(path, path, text=["participant_id"])
    assert table["participant_id"].tolist() == ["1", "2"]
    assert table["age"].tolist() == [20, 30]


def test_a_label_of_joined_tables_is_numbers_if_it_is_in_all_of_them(tmp_path: Path) -> None:
    columns = {
        "rating": (["n/a", "n/a"], ["1", "2"], ["2.5", "n/a"]),
        "code": (["1", "2"], ["n/a", "n/a"], ["x1", "2"]),
        "name": (["n/a", "n/a"], ["a", "b"], ["n/a", "n/a"]),
        "heat": (["44", "46"], ["44", "47.5"], ["hot", "47"]),
        "never": (["n/a", "n/a"],) * 3,
    }
    tables = []
    for i in range(3):
        path = tmp_path / f"{i}.tsv"
        pd.DataFrame({name: parts[i] for name, parts in columns.items()}).to_csv(path, sep="\t", index=False)
        tables.append(read_table(path, str(path)))
    joined = join_tables(tables)
    assert [pd.api.types.is_numeric_dtype(joined[name]) for name in columns] == [True, False, False, False, True]
    np.testing.assert_array_equal(joined["rating"], [np.nan, np.nan, 1, 2, 2.5, np.nan])
    assert joined["code"].dropna().tolist() == ["1", "2", "x1", "2"]
    assert joined["name"].dropna().tolist() == ["a", "b"]
    assert joined["heat"].tolist() == ["44", "46", "44", "47.5", "hot", "47"]
    assert joined["never"].isna().all()


def test_unknown_durations_and_labels_are_missing(tmp_path: Path) -> None:
    events = read(tmp_path, "onset\tduration\ttrial_type\tanswer\n1\tn/a\ta\t\n2\t\tb\tn/a\n3\t1\tc\tyes\n")
    assert events["duration"].isna().tolist() == [True, True, False]
    assert events["answer"].isna().tolist() == [True, True, False]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_byte_order_mark_and_windows_lines_are_no_hindrance(tmp_path: Path, encoding: str, newline: str) -> None:
    events = read(tmp_path, (HEADER + "1\t2\tGefühl\n").replace("\n", newline), encoding)
    assert list(events) == ["onset", "duration", "trial_type"]
    assert events["trial_type"].tolist() == ["Gefühl"]


def test_a_tab_at_the_end_of_lines_moves_no_column(tmp_path: Path) -> None:
    """pandas would take the first column for an index, and read durations as onsets."""
    events = read(tmp_path, "onset\tduration\tweight\n1\t2\t3\t\n4\t5\t6\t\n")
    assert events[["onset", "duration", "weight"]].to_numpy().tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_table_in_memory_is_read_the_same_and_left_alone() -> None:
    given = pd.DataFrame({"onset": [3, 1], "duration": [1, 1], "trial_type": ["b", "a"]}, index=[7, 7])
    before = given.copy()
    events = read_events(given, "events")
    assert events["trial_type"].tolist() == ["a", "b"]
    events["onset"] = 0
    pd.testing.assert_frame_equal(given, before)


# --- what is refused


def test_missing_columns_are_named(tmp_path: Path) -> None:
    assert_names(error_of(tmp_path, "start\tduration\n1\t2\n"), "onset", "'start'", "'duration'")
    assert_names(error_of(tmp_path, "start\tstop\n1\t2\n"), "onset", "duration", "'start'", "'stop'")
    assert_names(error_of(tmp_path, "onset,duration\n1,2\n"), "onset", "duration", "'onset,duration'")


@pytest.mark.parametrize("column", ["onset", "duration"])
@pytest.mark.parametrize("value", ["soon", "1,5", "inf", "1 s"])
def test_values_that_are_no_numbers_are_named_by_row(tmp_path: Path, column: str, value: str) -> None:
    row = {"onset": f"{value}\t1\tb\n", "duration": f"5\t{value}\tb\n"}[column]
    message = error_of(tmp_path, HEADER + "9\t1\ta\n" + row)
    assert_names(message, "line 3", column, repr(value))


def test_an_unknown_onset_is_named_by_row(tmp_path: Path) -> None:
    for value in ("n/a", ""):
        message = error_of(tmp_path, HEADER + f"1\t1\ta\n2\t1\ta\n{value}\t1\tb\n")
        assert_names(message, "line 4", "onset", "n/a")


def test_a_negative_duration_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    message = error_of(tmp_path, HEADER + "9\t1\ta\n3\t-0.5\tb\n")
    assert_names(message, "line 3", "duration", -0.5)


def test_empty_files_are_refused(tmp_path: Path) -> None:
    for text in (HEADER, ""):
        assert error_of(tmp_path, text)


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    assert error_of(tmp_path, HEADER + "1\t1\tGefühl\n", "latin-1")
    assert error_of(tmp_path, HEADER + "1\t1\ta\n", "utf-16")
    assert "line 3" in error_of(tmp_path, HEADER + "1\t1\ta\n1\t1\ta\tb\tc\n")
    with pytest.raises(StudyError, match=naming(tmp_path / "nowhere.tsv")):
        read_events(tmp_path / "nowhere.tsv", str(tmp_path / "nowhere.tsv"))


def test_tables_in_memory_are_refused_by_row_too() -> None:
    with pytest.raises(StudyError, match=naming("run 1", "line 3", "onset")):
        read_events(pd.DataFrame({"onset": [1, None], "duration": 1}), "events of run 1")
