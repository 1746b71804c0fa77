"""Files that anybody may have written: read with care, so that a damaged one is an error that names its place."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ntfa.errors import NTFAError, OutputError, StudyError


def one_line(error: BaseException) -> str:
    """Say what went wrong in one line; the error's name, where it says nothing itself."""
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def reading(what: str, kind: type[NTFAError] = StudyError) -> Iterator[None]:
    """Turn whatever goes wrong inside into an error of ours that begins with `what`.

    For calls into libraries, which may raise anything for a file that is half of one. Errors of ours pass, and so does
    running out of memory, which is not the file's fault: what a file claims to hold is checked before it is read.
    """
    try:
        yield
    except (NTFAError, MemoryError):
        raise
    except Exception as error:
        raise kind(f"{what} ({one_line(error)})") from error


def require_file(path: str | os.PathLike[str]) -> None:
    """Raise `ValueError` for what can be opened and is no file, which might never end, and for a link to nothing."""
    if os.path.islink(path) and not os.path.exists(path):
        raise ValueError(
            "it is a link to a file that is not here; in a dataset of DataLad or git-annex, fetch it (datalad get)"
        )
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError("it is a folder, a pipe or a device, and no file")


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON object.

    Raises
    ------
    ValueError
        In one line, for a file that cannot be read, is no JSON object, is nested too deeply, or has text that is no
        Unicode and so could not be written again.
    """
    try:
        require_file(path)
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise ValueError(one_line(error)) from error
    return content


def table_text(path: str | os.PathLike[str], *, line_breaks: bool = False) -> str:
    """Read a TSV file as text for pandas, checked as by `table_rows`.

    Parameters
    ----------
    line_breaks : bool
        Whether a value in quotes may go over several lines. In a file written by hand that is a stray quote, which
        swallows the rows up to the next one.
    """
    return _read_table(path, line_breaks)[0]


def table_rows(path: str | os.PathLike[str]) -> tuple[list[str], list[list[str]]]:
    """Read a TSV file: the names of its columns, and a list of values for every row that is not blank.

    A file named .csv may have commas or semicolons between values.

    Raises
    ------
    ValueError
        In one line: not UTF-8, a column twice, a row with more or fewer values than the header, or a stray quote.
    """
    _, columns, rows = _read_table(path, line_breaks=False)
    return columns, rows


def _read_table(path: str | os.PathLike[str], line_breaks: bool) -> tuple[str, list[str], list[list[str]]]:
    try:
        require_file(path)
        text = Path(path).read_bytes().decode("utf-8-sig")
        if "\0" in text:
            raise ValueError("it has NUL characters, so it is no UTF-8 text")
        return text, *_rows(text, line_breaks, _delimiter(path, text))
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(one_line(error)) from error


def _delimiter(path: str | os.PathLike[str], text: str) -> str:
    # Spreadsheets write semicolons where commas are for decimals.
    header = text.split("\n", 1)[0]
    return max(",;\t", key=header.count) if Path(path).suffix.lower() == ".csv" else "\t"


def _rows(text: str, line_breaks: bool, delimiter: str) -> tuple[list[str], list[list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    columns: list[str] = []
    for row in reader:
        if not row or (len(row) == 1 and not row[0].strip()):
            continue
        if any("\n" in value or "\r" in value for value in row) and not line_breaks:
            raise ValueError(f"line {reader.line_num}: a value in quotes goes over several lines; is a quote missing?")
        if not columns:
            columns = _columns(row)
        elif any(row[len(columns) :]) or len(row) < len(columns):
            number, n_columns = reader.line_num, len(columns)
            raise ValueError(f"line {number} has {len(row)} values, but the header names {n_columns} columns")
        else:
            rows.append(row[: len(columns)])
    if not columns:
        raise ValueError("it is empty")
    return columns, rows


def _columns(row: list[str]) -> list[str]:
    """Names of the columns, without those that a tab at the end of the header makes."""
    while row and not row[-1]:
        row = row[:-1]
    if not row:
        raise ValueError("the header names no column")
    row = [name or f"Unnamed: {i}" for i, name in enumerate(row)]
    twice = [name for i, name in enumerate(row) if name in row[:i]]
    if twice:
        raise ValueError(f"the header has the column {twice[0]!r} twice")
    return row


def load_array(path: str | os.PathLike[str], mmap_mode: Any = "r") -> np.memmap:
    """Map an .npy file into memory: what its header claims is compared with its size, and costs nothing.

    Raises
    ------
    ValueError
        In one line, for a file that is no such array.
    """
    require_file(path)
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except MemoryError:
        raise
    except Exception as error:
        # A damaged header makes numpy raise nearly anything.
        raise ValueError(one_line(error)) from error
    if not isinstance(array, np.memmap):
        raise ValueError("it is no .npy file of one array")
    return array


def refuse_links(folder: Path) -> None:
    """Refuse to write into a folder that holds symbolic links: what is written would land where they point."""
    for path, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            if os.path.islink(os.path.join(path, name)):
                raise OutputError(
                    f"{os.path.join(path, name)} is a symbolic link, and writing to it would change something outside "
                    f"of {folder}; put a copy in its place"
                )
