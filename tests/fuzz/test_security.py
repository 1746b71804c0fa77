"""What SECURITY.md promises: no code from data, nothing written outside the output folder, no script, no network."""

import ast
import json
import os
import re
import socket
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fuzz_readers import READERS, fitted, simulation
from helpers import naming

import ntfa
from ntfa import NTFA, Study
from ntfa.cli import main
from ntfa.comparison.figures import save_figure
from ntfa.comparison.report import write_comparison_report
from ntfa.errors import OutputError
from ntfa.plots import plot_embeddings
from ntfa.report.build import load_any, write_report
from ntfa.report.files import safe_file_name
from ntfa.report.images import write_images

SOURCES = sorted(Path(ntfa.__file__).parent.rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "shelve", "marshal", "subprocess", "requests", "ftplib", "smtplib"}
FORBIDDEN_MODULES |= {"urllib.request", "http.client", "http", "telnetlib", "xmlrpc", "yaml", "code", "runpy"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "joblib.load"}
FORBIDDEN_CALLS |= {
    "pd.read_pickle",
    "pandas.read_pickle",
    "torch.hub.load",
    "socket.socket",
    "socket.create_connection",
}
EVIL = [
    "../../../evil",
    "/tmp/evil",
    "..",
    "a/../../b",
    "C:\\evil",
    "<script>alert(1)</script>",
    "</script><svg onload=alert(1)>",
    "]]><script>alert(1)</script>",
    "--><script>alert(1)</script>",
    "$\\frac{$",
    "\x00\x1b[31m",
    "é" * 200,
]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Refuse every connection, and note who asked."""
    asked: list[Any] = []

    def refuse(*args: Any, **options: Any) -> None:
        asked.append(args)
        raise OSError("there is no network here")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    return asked


# --- no code from data


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def offences(source: str) -> Iterator[str]:
    """Name the imports and calls in a source that could run code from data, or reach a network."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            yield from names & (FORBIDDEN_MODULES | FORBIDDEN_CALLS)
        elif isinstance(node, ast.Call):
            name = name_of(node.func)
            options = {option.arg: getattr(option.value, "value", None) for option in node.keywords}
            if name in FORBIDDEN_CALLS or (name.endswith(".load") and options.get("allow_pickle")):
                yield name
            if name in ("np.load", "numpy.load", "np.save", "numpy.save") and options.get("allow_pickle") is not False:
                yield f"{name} without allow_pickle=False"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from torch import load\nfrom torch.hub import load",
        "import torch\ntorch.load('x')",
        "eval('1')",
        "import numpy as np\nnp.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "from urllib.request import urlopen",
        "from urllib import request",
        "import socket\nsocket.socket()",
    ],
)
def test_an_offence_is_seen(source: str) -> None:
    assert list(offences(source))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(Path(ntfa.__file__).parent)))
def test_no_source_runs_code_from_data_or_reaches_a_network(path: Path) -> None:
    assert not list(offences(path.read_text(encoding="utf-8")))


def test_a_model_names_its_kind_and_no_other_code(tmp_path: Path) -> None:
    fitted(NTFA).save(tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    for kind in ("os.system", "ntfa.estimators.base.TopographicModel", "__class__", "TopographicModel", "../NTFA"):
        (tmp_path / "model/config.json").write_text(json.dumps(config | {"model": kind}))
        with pytest.raises(ntfa.errors.ModelError):
            load_any(tmp_path / "model")


# --- nothing outside the output folder


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("label", EVIL)
def test_a_label_becomes_a_plain_file_name(label: str) -> None:
    name = safe_file_name(label)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,70}", name)


def relabelled(labels: list[str]) -> Study:
    """The small study, its participants and stimuli called so."""
    study = simulation().study
    people = dict(zip(study.participants, labels, strict=False))
    stimuli = dict(zip(study.stimuli, labels[::-1], strict=False))
    trials = study.trials.assign(
        participant=study.trials["participant"].map(people), stimulus=study.trials["stimulus"].map(stimuli)
    )
    frames = {people[label]: array for label, array in study.frames.items()}
    return Study.from_arrays(frames, trials, study.coordinates, study.mask_img)


@pytest.mark.parametrize("labels", [EVIL[:3], EVIL[3:6], EVIL[6:9]], ids=["up", "across", "markup"])
def test_labels_lead_nowhere(labels: list[str], tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    study = relabelled(labels)
    study.save(inside / "study")
    assert Study.open(inside / "study").participants == sorted(labels)
    model = NTFA(n_factors=2, max_epochs=1, random_state=0, device="cpu").fit(study)
    model.save(inside / "model")
    write_images(load_any(inside / "model"), inside / "model", everything=True)
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"b"}
    assert {path.name for path in inside.iterdir()} == {"study", "model"}
    assert len(list((inside / "model" / "factors").glob("*.nii.gz"))) == len(labels)


@pytest.mark.parametrize(
    "name", ["../x.npy", "/etc/passwd", "frames/../../x.npy", "frames\\x.npy", "frames/..", "x.npy"]
)
def test_a_study_names_no_file_outside_of_it(name: str, tmp_path: Path) -> None:
    READERS["saved study"].make(tmp_path)
    path = tmp_path / "study" / "study.json"
    content = json.loads(path.read_text())
    content["participants"][next(iter(content["participants"]))] = name
    path.write_text(json.dumps(content))
    with pytest.raises(ntfa.errors.StudyError, match=naming("study.json", "frames/")):
        Study.open(tmp_path / "study")


@pytest.mark.parametrize(
    "name", ["report.html", "labels_stimuli.tsv", "figures", "figures/bound.png", "factors.nii.gz"]
)
def test_a_report_is_not_written_through_a_link(name: str, tmp_path: Path) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside"
    fitted(NTFA).save(model)
    outside.mkdir()
    (outside / "precious").write_text("precious")
    link = model / name
    link.parent.mkdir(exist_ok=True)
    os.symlink(outside if name == "figures" else outside / "precious", link)
    for write in (
        lambda: write_report(load_any(model), None, model / "report.html"),
        lambda: write_images(load_any(model), model, everything=True),
    ):
        with pytest.raises(OutputError, match=naming(link)):
            write()
    assert main(["report", str(model)]) == 1
    assert tree(outside) == {"precious"}
    assert (outside / "precious").read_text() == "precious"


def test_a_comparison_is_not_written_through_a_link(tmp_path: Path) -> None:
    READERS["comparison"].make(tmp_path)
    (tmp_path / "precious").write_text("precious")
    os.symlink(tmp_path / "precious", tmp_path / "out" / ".report.html.partial")
    with pytest.raises(OutputError, match=naming(".report.html.partial")):
        write_comparison_report(tmp_path / "out")
    assert (tmp_path / "precious").read_text() == "precious"


# --- no script


def test_pages_run_no_script_but_their_own(tmp_path: Path) -> None:
    READERS["comparison"].make(tmp_path)
    out = tmp_path / "out"
    for evil in EVIL[5:9]:
        table = pd.DataFrame({"across": [evil], "features": [evil], "auc": [0.5], evil: [evil]})
        table.to_csv(out / "mvpa" / "overall.tsv", sep="\t", index=False)
        known = json.loads((out / "comparison.json").read_text())
        changed = known | {"settings": {evil: evil}, "command": [evil], "versions": {evil: evil}}
        (out / "comparison.json").write_text(json.dumps(changed))
        (out / "connectivity" / "not_possible.txt").write_text(evil)
        html = write_comparison_report(out).read_text()
        assert evil not in html
        assert len(re.findall(r"<script|<svg|onload=alert\(1\)>", html)) == 1
        assert "default-src 'none'" in html


def test_labels_in_an_svg_stay_text(tmp_path: Path, no_network: list[Any]) -> None:
    table = pd.DataFrame({"z1": np.arange(len(EVIL)) % 4, "z2": np.arange(len(EVIL)) // 4}, index=EVIL, dtype=float)
    groups = pd.Series([f"{label} group" for label in EVIL], index=EVIL, name=EVIL[5])
    save_figure(plot_embeddings(table, groups, title=EVIL[6]), tmp_path / "figure")
    assert no_network == []
    text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    elements = list(ElementTree.fromstring(text).iter())
    assert not {element.tag.rsplit("}")[-1] for element in elements} & {"script", "foreignObject", "a", "image"}
    assert not {key for element in elements for key in element.attrib if key.startswith("on")}
    assert "<script" not in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


# --- no network


def test_simulate_fit_and_report_ask_for_no_network(
    no_network: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("127.0.0.1", 9))
    no_network.clear()
    # Pictures take longer than all else, and are drawn with the sockets blocked in the test of SVG.
    monkeypatch.setattr("ntfa.report.build.model_pictures", lambda model, labels: [])
    monkeypatch.setattr("ntfa.report.evidence.data_pictures", lambda *data: [])
    sizes = ["--participants", "3", "--stimuli", "2", "--frames", "4", "--voxels", "60"]
    assert main(["simulate", str(tmp_path / "study"), *sizes, "-q"]) == 0
    fit = ["fit", str(tmp_path / "study"), str(tmp_path / "model"), "--n-factors", "2", "--max-epochs", "2", "-q"]
    assert main([*fit, "--device", "cpu"]) == 0
    assert main(["report", str(tmp_path / "model"), "-q"]) == 0
    assert no_network == []
