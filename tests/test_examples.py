"""The examples run, and what they print and write is what the documentation says of them."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]

WRITES = {
    "own_arrays": ["own_arrays.png", "own_arrays.html", "own_arrays_model/model.safetensors"],
    "own_images": ["predicted.nii.gz", "factors.nii.gz", "own_images_prediction.png", "own_images_factors.png"],
    "bids_study": ["bids_participants.tsv", "bids_embeddings.png"],
    "compare_models": ["models.tsv", "factor_counts.tsv", "compare_models.png"],
    "decode_stimuli": ["decoding.tsv", "decoding.png"],
    "groups_and_traits": ["participants.tsv", "groups_and_traits.tsv", "groups_and_traits.png"],
    "read_embeddings": ["difference_levels.tsv", "two_fits.png"],
    "add_newcomers": ["add_newcomers.png", "added_model/newcomers.tsv", "added_model/retests.tsv"],
}


def run(name: str, out: Path) -> str:
    """Run an example as a script, but in this process, which has imported everything already."""
    script, printed = str(ROOT / "examples" / f"{name}.py"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(out), contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [script, str(out)])
        runpy.run_path(script, run_name="__main__")
    plt.close("all")
    for file in WRITES[name]:
        assert (out / file).stat().st_size > 100, file
    return printed.getvalue()


def test_every_example_is_tested_and_short() -> None:
    scripts = {path.stem: path for path in (ROOT / "examples").glob("*.py")}
    assert set(scripts) == set(WRITES)
    assert all(len(path.read_text().splitlines()) <= 65 for path in scripts.values())


def test_own_arrays(tmp_path: Path) -> None:
    printed = run("own_arrays", tmp_path)
    # The two spots were put at (-24, 8, 0) and (24, -8, 8), with a width of 20 mm.
    found = re.findall(r"^[12]\s+(-?[\d.]+)\s+(-?[\d.]+)\s+(-?[\d.]+)\s+(-?[\d.]+)$", printed, re.MULTILINE)
    places = sorted(tuple(map(float, row)) for row in found)
    assert places[0] == pytest.approx((-24, 8, 0, 20), abs=2)
    assert places[1] == pytest.approx((24, -8, 8, 20), abs=2)


def test_own_images(tmp_path: Path) -> None:
    printed = run("own_images", tmp_path)
    assert float(printed.split()[-1]) > 0.9


def test_bids_study(tmp_path: Path) -> None:
    printed = run("bids_study", tmp_path)
    assert "accuracy=1.0" in printed
    assert len(pd.read_csv(tmp_path / "bids_participants.tsv", sep="\t")) == 9


def test_compare_models(tmp_path: Path) -> None:
    run("compare_models", tmp_path)
    counts = pd.read_csv(tmp_path / "factor_counts.tsv", sep="\t").set_index("n_factors")["log_predictive"]
    assert counts.idxmax() == 10
    models = pd.read_csv(tmp_path / "models.tsv", sep="\t").set_index("method")["log_predictive"]
    assert models.idxmax() == "NTFA"


def test_decode_stimuli(tmp_path: Path) -> None:
    run("decode_stimuli", tmp_path)
    auc = pd.read_csv(tmp_path / "decoding.tsv", sep="\t").set_index(["features", "category"])["auc"]
    assert auc["with stimulus", "permuted labels"] > 0.9
    assert auc["fit per fold", "permuted labels"] < auc["one fit", "permuted labels"]
    assert auc["fit per fold", "true labels"] > 0.65


def test_read_embeddings(tmp_path: Path) -> None:
    printed = run("read_embeddings", tmp_path)
    axis, distances, left = (float(line.split(":")[1]) for line in printed.splitlines()[:3])
    assert abs(distances) > 0.95 > 0.1 > left
    assert abs(axis) < distances
    levels = pd.read_csv(tmp_path / "difference_levels.tsv", sep="\t", index_col=0)
    assert levels.loc["sub-01", "sub-09"] > 0.99


def test_add_newcomers(tmp_path: Path) -> None:
    printed = run("add_newcomers", tmp_path)
    assert printed.splitlines()[-1].endswith("True")
    newcomers = pd.read_csv(tmp_path / "added_model" / "newcomers.tsv", sep="\t").set_index("label")
    assert newcomers.index[newcomers["outside"]].tolist() == ["sub-30"]
    retests = pd.read_csv(tmp_path / "added_model" / "retests.tsv", sep="\t")
    assert retests["participant"].tolist() == ["sub-01", "sub-02"]


def test_groups_and_traits(tmp_path: Path) -> None:
    run("groups_and_traits", tmp_path)
    p = pd.read_csv(tmp_path / "groups_and_traits.tsv", sep="\t").groupby("column")["p_adjusted"].first()
    # Diagnosis, age and fear were made to matter, handedness was not.
    assert max(p[["diagnosis", "age", "fear"]]) < 0.05
    assert p["handedness"] > 0.05


def messages_of_the_code() -> list[re.Pattern[str]]:
    """Return a pattern for every text in the package, with anything where it has something to fill in."""
    patterns = []
    for path in (ROOT / "src" / "ntfa").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            fixed = "".join(text for text in texts if isinstance(text, str))
            if len(fixed) > 15 and "\n" not in fixed:
                made = "".join(".*" if text is None else re.escape(str(text)) for text in texts)
                patterns.append(re.compile(re.sub(r"%[sd]", ".+", made)))
    return patterns


def test_the_faq_quotes_messages_as_the_code_has_them() -> None:
    quoted = re.findall(r"^> (.+)$", (ROOT / "docs" / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(quoted) >= 20
    known = messages_of_the_code()

    def is_known(text: str) -> bool:
        return any(one.fullmatch(text) for one in known)

    # Some messages get the name of a folder put before them on their way.
    assert [text for text in quoted if not is_known(text) and not is_known(text.split(": ", 1)[-1])] == []
