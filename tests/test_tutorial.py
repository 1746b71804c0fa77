"""The tutorial's commands and code run, and print the numbers that the page shows."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ntfa.cli import main

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")
NUMBER = r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
SECONDS = r"\d+(?:\.\d+)? s\b"
LESS = {"compare": ["--parts", "generalisation", "predictions"]}
"""What keeps a command short: other parts of the comparison print nothing that the page quotes."""


def commands() -> list[tuple[list[str], str]]:
    """Return the page's commands as words, each with the text that is shown after it."""
    found = re.findall(r"^    ntfa (.+)\n(?:(?!    ntfa ).*\n)*?```text\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
    return [(line.split(), shown) for line, shown in found]


def compare(shown: str, printed: str) -> None:
    """Find each part of a text between ellipses in what was printed; numbers may differ as far as they are rounded."""
    printed = " ".join(re.sub(SECONDS, "SECONDS", printed).split())
    for part in re.split(r"(?:, )?\.\.\.", re.sub(SECONDS, "SECONDS", shown)):
        part = " ".join(part.split())
        pattern = re.sub(NUMBER, "@", part)
        found = re.search(re.escape(pattern).replace("@", f"({NUMBER})"), printed)
        assert found is not None, f"the page has\n{part}\nand what was printed is\n{printed}"
        for wanted, number in zip(re.findall(NUMBER, part), found.groups(), strict=True):
            assert as_number(number) == pytest.approx(as_number(wanted), rel=0.01, abs=rounding(wanted)), part


def as_number(text: str) -> float:
    return float(text.replace(",", ""))


def rounding(text: str) -> float:
    """Return one unit of a number's last digit; none for whole numbers, which are counts and labels."""
    return 10.0 ** -len(text.split(".")[1]) if "." in text and "e" not in text else 0.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tutorial")


@pytest.fixture(scope="module")
def printed(place: Path) -> dict[str, str]:
    """What each command prints, log included, without the pictures that nobody looks at here."""
    said = {}
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(place):
        patch.setattr(
            "ntfa.report.build.write_report", lambda model, study, path, *rest, **more: path.write_text("<h1>")
        )
        patch.setattr("ntfa.cli.compare.write_comparison_report", lambda folder: folder / "report.html")
        for words, _ in commands():
            said[" ".join(words)] = run([*words, *LESS.get(words[0], [])])
    return said


def run(words: list[str]) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("ntfa")
    logger.addHandler(handler)
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            assert main(words) == 0, stream.getvalue()
    finally:
        logger.removeHandler(handler)
    return stream.getvalue()


def test_the_page_has_what_is_tested_here() -> None:
    assert [words[0] for words, _ in commands()] == ["simulate", "bids", "bids", "compare"]
    assert len(re.findall("^    ntfa ", PAGE, re.MULTILINE)) == 4


def test_commands_print_what_the_page_shows(printed: dict[str, str]) -> None:
    for words, shown in commands():
        compare(shown, printed[" ".join(words)])


def test_code_prints_what_the_page_shows(printed: dict[str, str], place: Path) -> None:
    ((code, shown),) = re.findall(r"```python\n((?:.*\n)*?)```\n\n```text\n((?:.*\n)*?)```", PAGE)
    stream = io.StringIO()
    with contextlib.chdir(place), contextlib.redirect_stdout(stream):
        exec(compile(code, "tutorial.md", "exec"), {})
    compare(shown, stream.getvalue())


def test_tables_are_those_of_the_files(printed: dict[str, str], place: Path) -> None:
    (shown,) = re.findall(r"```text\n(participant +z1 (?:.*\n)*?)```", PAGE)
    table = pd.read_csv(place / "results/ntfa/embeddings_participants.tsv", sep="\t", index_col=0)
    rows = [line.split() for line in shown.splitlines() if line != "..."]
    assert rows[0][1:] == table.columns.tolist()
    for label, *numbers in rows[1:]:
        np.testing.assert_allclose(np.array(numbers, dtype=float), table.loc[label], atol=0.02)


def test_factors_are_those_of_the_files(printed: dict[str, str], place: Path) -> None:
    rows = np.array([row.split("|")[2:-1] for row in re.findall(r"^\| factor \d .*$", PAGE, re.MULTILINE)], dtype=float)
    factors = pd.read_csv(place / "results/ntfa/factors.tsv", sep="\t")
    found = factors.groupby("factor")[["x", "y", "z", "width"]].mean().to_numpy()
    np.testing.assert_allclose(rows[:, :4], found, atol=0.2)
    truth = pd.read_csv(place / "data/derivatives/truth/truth_factors.tsv", sep="\t")
    true = np.column_stack([truth[["x", "y", "z"]], np.exp(truth["log_width"] / 2)])
    nearest = np.linalg.norm(found[:, None, :3] - true[None, :, :3], axis=-1).argmin(1)
    np.testing.assert_allclose(rows[:, 4:], true[nearest], atol=0.06)
    assert np.linalg.norm(found[:, :3] - true[nearest, :3], axis=1).max() < 2


def test_the_comparison_with_tfa_is_that_of_the_table(printed: dict[str, str], place: Path) -> None:
    ((*numbers,),) = re.findall(rf"\(difference ({NUMBER}), interval ({NUMBER}) to ({NUMBER})\)", PAGE)
    table = pd.read_csv(place / "comparison/generalisation/differences.tsv", sep="\t")
    row = table[(table["estimator"] == "collapsed") & (table["against"] == "TFA")].iloc[0]
    for wanted, number in zip(numbers, row[["difference", "ci_low", "ci_high"]], strict=True):
        assert number == pytest.approx(float(wanted), abs=rounding(wanted))
