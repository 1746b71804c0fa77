"""A fit's report: one file, safe to open, whatever the labels and sizes."""

import base64
import copy
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ntfa import HTFA, NTFA, TFA, TLSA, Study
from ntfa.baselines import MeanImage
from ntfa.errors import NotFittedError
from ntfa.estimators.saving import versions
from ntfa.report import generate_report, write_report
from ntfa.report.figures import as_png
from ntfa.report.files import read_labels
from ntfa.report.methods import Facts, methods
from ntfa.uncertainty.differences import difference, differences, spread

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"quotes' & <b>",
    "../../etc/passwd",
    "🧠 naïve \u2028 line",
    "x" * 200,
]


def relabelled(study: Study, labels: list[str]) -> Study:
    """Give participants, stimuli and one more column these labels."""
    people = dict(zip(study.participants, labels, strict=False))
    stimuli = dict(zip(study.stimuli, labels, strict=False))
    trials = study.trials.assign(
        participant=study.trials["participant"].replace(people), stimulus=study.trials["stimulus"].replace(stimuli)
    )
    trials["<i>site</i>"] = trials["participant"]
    frames = {people.get(p, p): array for p, array in study.frames.items()}
    return Study.from_arrays(frames, trials, study.coordinates)


@pytest.mark.pictures
def test_the_report_needs_nothing_beside_it(model: NTFA, study: Study, page: type) -> None:
    html = model.generate_report(study).html
    parsed = page(html)
    tags = {tag for tag, _ in parsed.tags}
    assert not {"link", "iframe", "object", "embed", "video", "audio"} & tags
    for _, attributes in parsed.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name) or "#"
            assert value.startswith(("data:image/png;base64,", "#")), value
    assert not re.search(r"""(src|href|url\(|@import)\s*[=(]?\s*["']?https?:""", html)
    assert "url(" not in html
    for image in parsed.all("img"):
        assert base64.b64decode(str(image["src"]).split(",", 1)[1]).startswith(b"\x89PNG")
        assert image["alt"]
    policy = next(meta["content"] for meta in parsed.all("meta") if "http-equiv" in meta)
    assert "default-src 'none'" in str(policy)
    assert len([a for a in parsed.all("script") if not a]) == 1


def test_the_page_reads_from_top_to_bottom(model: NTFA, study: Study, no_figures: None, page: type) -> None:
    parsed = page(model.generate_report(study).html)
    names = [
        "summary",
        "design",
        "embeddings",
        "factors",
        "maps",
        "interaction",
        "predictions",
        "convergence",
        "settings",
        "methods",
    ]
    assert parsed.sections == names
    links = [a["href"] for a in parsed.all("a")]
    assert links == ["#summary", *(f"#{name}" for name in names)]
    assert "NTFA with 3 factors was fitted to 24 trials of 6 participants and 4 stimuli, 300 voxels." in parsed.text
    found = spread(model.participants_)
    assert f"{found.n_apart_adjusted} of 15 pairs ({found.n_apart_adjusted / 15:.0%})" in parsed.text
    assert f"the spread of their means is {found.ratio:.1f} times" in parsed.text
    assert "The fit had not converged" in parsed.text
    assert "Sennesh, E., Khan, Z." in parsed.text
    for paragraph in methods(Facts.of(model, versions())):
        assert paragraph in parsed.text
    for x in model.factors_.groupby("factor")["x"].mean():
        assert f"{round(x, 1):.4g}" in parsed.text


def test_the_script_is_given_what_the_model_says(model: NTFA, study: Study, no_figures: None, page: type) -> None:
    data = json.loads(page(model.generate_report(study).html).data)
    people = data["kinds"]["participant"]
    assert people["labels"] == model.participants_.index.tolist()
    np.testing.assert_allclose(people["mean"], model.participants_[["z1", "z2"]], atol=1e-6)
    np.testing.assert_allclose(people["sd"], model.participants_[["z1_sd", "z2_sd"]], atol=1e-6)
    np.testing.assert_allclose(np.array(people["planes"][0]["covs"])[:, 1], model.participants_["z1_z2_cov"], rtol=1e-4)
    wanted = differences(model.participants_).set_index(["a", "b"])
    shown = {one["key"]: one for one in people["pairs"]}
    assert set(shown) == {"p", "p_adjusted", "effect"}
    names = people["labels"]
    for i in range(1, len(names)):
        for j in range(i):
            one = wanted.loc[(names[j], names[i])]
            assert shown["p"]["rows"][i][j] == pytest.approx(one["p"], rel=1e-3)
            assert shown["p_adjusted"]["rows"][i][j] == pytest.approx(one["p_adjusted"], rel=1e-3)
            found = [shown["effect"][end][i][j] for end in ("low", "rows", "high")]
            assert found == pytest.approx(one[["effect_low", "effect", "effect_high"]].tolist(), rel=1e-3)
    assert people["columns"] == ["group"]
    assert [row[0] for row in people["rows"]] == study.trials.groupby("participant")["group"].first().tolist()
    (colouring,) = people["colourings"]
    assert [key["name"] for key in colouring["keys"]] == ["Group 1", "Group 2", "Group 3"]
    own = model.factors_[model.factors_["participant"] == people["labels"][2]][["x", "y", "z", "width"]]
    np.testing.assert_allclose(data["own"][2], own, atol=0.051)


@pytest.mark.parametrize("kind", [HTFA, TFA, TLSA])
def test_models_without_embeddings_have_a_report_without_them(
    study: Study, no_figures: None, page: type, kind: type
) -> None:
    parsed = page(kind(n_factors=2, max_epochs=3, random_state=0).fit(study).generate_report(study).html)
    assert "embeddings" not in parsed.sections
    assert "factors" in parsed.sections
    assert json.loads(parsed.data)["kinds"]["participant"]["mean"] is None


def test_a_model_that_predicts_nothing_says_so(study: Study, no_figures: None, page: type) -> None:
    model = TFA(n_factors=2, block="trial", max_epochs=2, random_state=0).fit(study)
    parsed = page(model.generate_report(study).html)
    assert "maps" not in parsed.sections
    assert "so it predicts no images" in parsed.text


@pytest.mark.pictures
def test_labels_notes_and_commands_are_text_and_nothing_else(study: Study, tmp_path: Path, page: type) -> None:
    evil = relabelled(study, HOSTILE)
    model = NTFA(n_factors=2, max_epochs=2, random_state=0).fit(evil)
    write_report(model, evil, tmp_path / "report.html", HOSTILE, ["ntfa", "fit", *HOSTILE])
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    parsed = page(html)
    assert len(parsed.all("script")) == 2
    assert not {"b", "i"} & {tag for tag, _ in parsed.tags}
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    data = json.loads(parsed.data)
    assert data["kinds"]["participant"]["labels"] == sorted(HOSTILE)
    assert "<i>site</i>" in data["kinds"]["participant"]["columns"]
    assert not re.search(r"[<>&\u2028\u2029]", parsed.data)
    for label in HOSTILE:
        assert label in parsed.text
    assert shlex.join(["ntfa", "fit", *HOSTILE]) in parsed.text
    assert all(path.resolve().is_relative_to(tmp_path) for path in tmp_path.rglob("*"))
    pd.testing.assert_index_equal(read_labels(tmp_path, "participant").index, model.participants_.index)


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("n_participants", "n_stimuli", "dim"), [(1, 1, 2), (1, 3, 1), (7, 5, 1), (7, 5, 3), (2, 2, 5), (5, 4, 5)]
)
def test_any_number_of_people_stimuli_and_dimensions(
    made_up_study: Callable, made_up_model: Callable, page: type, n_participants: int, n_stimuli: int, dim: int
) -> None:
    study = made_up_study(n_participants, n_stimuli)
    model = made_up_model(study, dim=dim)
    parsed = page(model.generate_report().html)
    people = json.loads(parsed.data)["kinds"]["participant"]
    assert np.shape(people["mean"]) == (n_participants, dim)
    assert np.shape(people["sd"]) == (n_participants, dim)
    principal = dim > 2
    # Every pair of the first four axes, then neighbours.
    pairs = min(dim, 4) * (min(dim, 4) - 1) // 2 + max(0, dim - 4)
    assert len(people["planes"]) == (1 if dim == 1 else pairs + principal)
    first = people["planes"][0]
    assert np.shape(first["points"]) == (n_participants, 2)
    if principal and n_participants > 2:
        assert all("of variance" in name for name in first["axes"])
        points, means = np.array(first["points"]), np.array(people["mean"])
        centred = means - means.mean(0)
        largest = np.linalg.svd(centred, compute_uv=False)[:2]
        np.testing.assert_allclose(np.linalg.norm(points - points.mean(0), axis=0), largest, atol=1e-4)
    if n_participants == 1:
        assert "only one of the participants" in parsed.text


@pytest.mark.parametrize(("n_participants", "n_stimuli"), [(200, 4), (3, 500)])
def test_many_people_and_stimuli(
    made_up_study: Callable,
    made_up_model: Callable,
    no_figures: None,
    page: type,
    n_participants: int,
    n_stimuli: int,
) -> None:
    model = made_up_model(made_up_study(n_participants, n_stimuli), n_factors=5)
    html = model.generate_report().html
    parsed = page(html)
    kind, left_out = (
        ("participant", "160 more participants") if n_participants > 40 else ("stimulus", "460 more stimuli")
    )
    assert len([a for a in parsed.all("img") if str(a.get("id")).startswith(f"map-{kind}-")]) == 40
    assert f"{left_out} are left out" in parsed.text
    assert len(html) < 4e6


def test_a_study_of_forty_with_a_hundred_factors_is_small_enough(
    made_up_study: Callable, made_up_model: Callable, no_figures: None
) -> None:
    study = made_up_study(40, 60, n_voxels=3000)
    # Figures are some hundred kilobytes in all.
    assert len(made_up_model(study, n_factors=100).generate_report(study).html) < 3e6


def test_a_report_can_be_made_again_without_the_study(model: NTFA, study: Study, tmp_path: Path, page: type) -> None:
    path = tmp_path / "report.html"
    quality = pd.DataFrame({"participant": ["sub-01"], "run": ["01"], "frames": [90], "frames_kept": [87]})
    write_report(model, study, path, ["A note."], ["ntfa", "fit"], quality)
    first = path.read_text(encoding="utf-8")
    figures = {file.name for file in (tmp_path / "figures").iterdir()}
    assert figures >= {"embeddings.png", "factors.png", "bound.png", "noise.png", "prediction-1.png"}
    write_report(model, None, path, command=["ntfa", "fit"])
    again = path.read_text(encoding="utf-8")
    assert page(first).data == page(again).data
    parsed, files = page(again), page(first).sections
    assert parsed.sections == files
    assert "quality" in parsed.sections
    for text in ("A note.", "the model was fitted to, is ", "ntfa fit"):
        assert text in parsed.text
    assert len(parsed.all("img")) == len(page(first).all("img"))


def test_predictions_are_compared_with_what_was_held_out(study: Study, no_figures: None, page: type) -> None:
    train, test = study.split("diagonal")
    model = NTFA(n_factors=3, max_epochs=12, random_state=0).fit(train)
    text = page(model.generate_report(train, test).html).text
    observed, predicted = test.mean_images(), model.predict(test.trials)
    ratio = ((observed - predicted) ** 2).sum() / (observed**2).sum()
    correlation = np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(observed, predicted, strict=True)])
    assert re.search(rf"predicted for {len(observed)} pairs held out from the fit is {ratio:.3f}\b", text)
    assert re.search(rf"correlation with the recorded images is {correlation:.2f}\b", text)
    mean = MeanImage(of="stimulus").fit(train).predict(test.trials)
    assert f"{((observed - mean) ** 2).sum() / (observed**2).sum():.3f} for" in text


def test_covariances_in_the_table_reach_the_page(
    model: NTFA, study: Study, no_figures: None, page: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = 0.5 * model.participants_["z1_sd"] * model.participants_["z2_sd"]
    monkeypatch.setattr(model, "participants_", model.participants_.assign(z1_z2_cov=product))
    people = json.loads(page(generate_report(model, study).html).data)["kinds"]["participant"]
    np.testing.assert_allclose(np.array(people["planes"][0]["covs"])[:, 1], product, rtol=1e-5)


def test_a_model_that_is_not_fitted_has_no_report() -> None:
    with pytest.raises(NotFittedError):
        NTFA().generate_report()


def test_static_figures_keep_rare_colours() -> None:
    """A thin line in a colour of its own must not come out in that of the thousands of pixels around it."""
    figure = Figure(figsize=(5, 5))
    axes = figure.subplots()
    axes.imshow(np.random.default_rng(0).uniform(size=(80, 80)), cmap="Blues")
    axes.plot([10, 12], [10, 12], color="#009E73", lw=3)
    pixels = np.asarray(Image.open(io.BytesIO(as_png(figure))).convert("RGB")).reshape(-1, 3)
    assert (pixels == [0, 0x9E, 0x73]).all(1).any()


@pytest.mark.pictures
def test_figures_and_tables_are_files_too(model: NTFA, study: Study, tmp_path: Path) -> None:
    quality = pd.DataFrame({"participant": ["sub-01"], "frames": [90], "image": ["/home/jane/a_bold.nii.gz"]})
    write_report(model, study, tmp_path / "report.html", quality=quality)
    for png in (tmp_path / "figures").glob("*.png"):
        assert ElementTree.parse(png.with_suffix(".svg")).getroot().tag.endswith("svg")
    pairs = pd.read_csv(tmp_path / "tables" / "pairs_participants.tsv", sep="\t").set_index(["first", "second"])
    assert len(pairs) == 15
    one = model.participants_.index[1], model.participants_.index[4]
    wanted = difference(model.participants_, *one)
    assert pairs.loc[one, "p"] == pytest.approx(wanted.p, rel=1e-4)
    assert pairs.loc[one, "effect_high"] == pytest.approx(wanted.effect_high, rel=1e-4)
    assert pairs.loc[one, "distance"] == pytest.approx(wanted.distance, rel=1e-5)
    factors = pd.read_csv(tmp_path / "tables" / "factors.tsv", sep="\t")
    np.testing.assert_allclose(factors["x (mm)"], model.factors_.groupby("factor")["x"].mean(), atol=0.051)
    settings = pd.read_csv(tmp_path / "tables" / "settings.tsv", sep="\t").set_index("name")["value"]
    assert settings["n_factors"] == "3"
    assert "jane" not in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "jane" not in (tmp_path / "quality.tsv").read_text(encoding="utf-8")


def test_a_page_without_scripts_shows_the_same(model: NTFA, study: Study, tmp_path: Path, page: type) -> None:
    write_report(model, study, tmp_path / "report.html", static=True, study_name="<b>faces</b>")
    html = (tmp_path / "report_static.html").read_text(encoding="utf-8")
    static, live = page(html), page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert not static.all("script")
    policy = next(str(meta["content"]) for meta in static.all("meta") if "http-equiv" in meta)
    assert "script-src" not in policy
    assert static.sections == live.sections
    assert [image["alt"] for image in static.all("img")] == [image["alt"] for image in live.all("img")]
    assert static.text.count("<b>faces</b>") >= 2


def test_the_study_and_the_date_are_remembered(
    model: NTFA, study: Study, tmp_path: Path, no_figures: None, page: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ntfa.report.build.today", lambda: "1 May 2031")
    write_report(model, study, tmp_path / "report.html", study_name="faces")
    monkeypatch.setattr("ntfa.report.build.today", lambda: "2 June 2032")
    write_report(model, None, tmp_path / "report.html")
    text = page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "1 May 2031" in text
    assert "2 June 2032" not in text
    assert "faces" in text


def test_spoiled_frames_are_drawn_and_counted_by_run(model: NTFA, study: Study, page: type) -> None:
    spoiled = copy.copy(model)
    table = model.frames_.assign(weight=1.0, run="run-1", framewise_displacement=0.1)
    table.loc[3, "weight"] = 0.01
    spoiled.frames_ = table
    parsed = page(spoiled.generate_report(study).html)
    assert "quality" in parsed.sections
    text = spoiled.generate_report(study).html
    assert f"1 of {len(table)} frames" in text
    assert "framewise displacement" in text
    assert "Runs with spoiled frames" in text
