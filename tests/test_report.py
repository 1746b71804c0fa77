"""The report and its pictures: one file, safe to open, whatever the labels and sizes."""

import base64
import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Ellipse

from ntfa import HTFA, NTFA, TFA, Study
from ntfa.analyses.labels import label_table
from ntfa.analyses.separation import separation
from ntfa.plots import plot_bound, plot_embeddings, plot_factors
from ntfa.report import embeddings_figure, write_report

EVIL = "<script>alert(1)</script>"
QUOTED = "\"quotes' & <b>"


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def model(study: Study) -> NTFA:
    return NTFA(n_factors=3, max_epochs=12, random_state=0).fit(study)


def relabelled(study: Study, participants: dict[str, str], stimuli: dict[str, str]) -> Study:
    trials = study.trials.assign(
        participant=study.trials["participant"].map(lambda p: participants.get(p, p)),
        stimulus=study.trials["stimulus"].map(lambda s: stimuli.get(s, s)),
    )
    frames = {participants.get(p, p): array for p, array in study.frames.items()}
    return Study.from_arrays(frames, trials, study.coordinates)


class Tags(HTMLParser):
    """Tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(model: NTFA | HTFA | TFA, study: Study, folder: Path, **parts: list[str]) -> str:
    write_report(model, study, folder / "report.html", **parts)
    return (folder / "report.html").read_text(encoding="utf-8")


# --- the page


def test_the_report_needs_nothing_beside_it(model: NTFA, study: Study, tmp_path: Path) -> None:
    page = page_of(model, study, tmp_path)
    parsed = Tags(page)
    assert not {"script", "link", "iframe", "object", "embed"}.intersection(tag for tag, _ in parsed.tags)
    for _, attributes in parsed.tags:
        for name in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(name) or "data:").startswith("data:image/png;base64,") or name not in attributes
    assert not re.search(r"https?://", page)
    assert not re.search(r"@import|url\(", page)
    images = [attributes["src"] for tag, attributes in parsed.tags if tag == "img"]
    assert len(images) == 3
    for image in images:
        assert base64.b64decode(str(image).split(",", 1)[1]).startswith(b"\x89PNG")
    assert all(attributes.get("alt") for tag, attributes in parsed.tags if tag == "img")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_report_says_what_was_found(model: NTFA, study: Study, tmp_path: Path) -> None:
    text = Tags(page_of(model, study, tmp_path, notes=["A note."], command=["ntfa", "fit", "a", "b"])).text
    assert "NTFA with 3 factors was fitted to 24 trials of 6 participants and 4 stimuli, 300 voxels." in text
    assert "A note." in text
    assert "ntfa fit a b" in text
    for x in model.factors_.groupby("factor")["x"].mean():
        assert f"{x:.1f}" in text
    for name in ("n_parameters", "seed", "torch", "max_epochs"):
        assert name in text
    assert str(model.n_parameters_) in text


@pytest.mark.parametrize("estimator", [HTFA, TFA])
def test_a_model_without_embeddings_has_a_report_without_them(
    study: Study, tmp_path: Path, estimator: type[HTFA] | type[TFA]
) -> None:
    parsed = Tags(page_of(estimator(n_factors=2, max_epochs=3, random_state=0).fit(study), study, tmp_path))
    assert len([tag for tag, _ in parsed.tags if tag == "img"]) == 2
    assert "Embeddings" not in parsed.text


def test_labels_notes_and_commands_cannot_become_markup(study: Study, tmp_path: Path) -> None:
    evil = relabelled(study, {"sub-01": EVIL, "sub-02": QUOTED}, {study.stimuli[0]: EVIL, study.stimuli[1]: QUOTED})
    model = NTFA(n_factors=2, max_epochs=2, random_state=0).fit(evil)
    page = page_of(model, evil, tmp_path, notes=[EVIL, QUOTED], command=["ntfa", "fit", EVIL, QUOTED])
    parsed = Tags(page)
    assert "script" not in {tag for tag, _ in parsed.tags}
    assert "b" not in {tag for tag, _ in parsed.tags}
    assert EVIL not in page
    assert parsed.text.count(EVIL) == 2
    assert parsed.text.count(QUOTED) == 1
    assert shlex.join(["ntfa", "fit", EVIL, QUOTED]) in parsed.text


def test_labels_cannot_become_mathematics(study: Study, tmp_path: Path) -> None:
    odd = relabelled(study, {"sub-01": r"$\frac$"}, {study.stimuli[0]: "a$^$"})
    page_of(NTFA(n_factors=2, max_epochs=2, random_state=0).fit(odd), odd, tmp_path)


def test_a_fit_of_one_participant_one_stimulus_one_dimension(study: Study, tmp_path: Path) -> None:
    one = study.select(participants=study.participants[0], stimuli=study.stimuli[0])
    model = NTFA(n_factors=1, embedding_dim=1, max_epochs=1, random_state=0).fit(one)
    assert "NTFA report" in page_of(model, one, tmp_path)


@pytest.mark.parametrize("dim", [1, 3])
def test_embeddings_of_other_dimensions_are_shown(study: Study, tmp_path: Path, dim: int) -> None:
    model = NTFA(n_factors=2, embedding_dim=dim, max_epochs=2, random_state=0).fit(study)
    assert "NTFA report" in page_of(model, study, tmp_path)


def test_participants_and_stimuli_are_coloured_by_their_groups(model: NTFA, study: Study) -> None:
    participants, stimuli = embeddings_figure(model, study).axes
    assert [text.get_text() for text in participants.get_legend().get_texts()] == ["Group 1", "Group 2", "Group 3"]
    assert [text.get_text() for text in stimuli.get_legend().get_texts()] == ["Task 1", "Task 2"]
    assert (participants.get_title(), stimuli.get_title()) == ("Participants", "Stimuli")


def test_a_study_without_labels_is_shown_without_colours(model: NTFA, study: Study) -> None:
    bare = Study.from_arrays(
        study.frames, study.trials[["participant", "stimulus", "start", "stop"]], study.coordinates
    )
    for axes in embeddings_figure(model, bare).axes:
        assert axes.get_legend() is None


# --- pictures


def test_embeddings_are_crosses_with_two_ellipses_each(model: NTFA, simulation: tuple) -> None:
    groups = simulation[1].participant_groups
    axes = plot_embeddings(model.participants_, groups, title="People")
    assert isinstance(axes, Axes)
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("People", "z1", "z2")
    assert sorted(text.get_text() for text in axes.texts) == model.participants_.index.tolist()
    drawn = np.concatenate([line.get_xydata() for line in axes.lines])
    expected = model.participants_[["z1", "z2"]].to_numpy()
    assert sorted(map(tuple, drawn)) == sorted(map(tuple, expected))
    ellipses = [patch for patch in axes.patches if isinstance(patch, Ellipse)]
    assert len(ellipses) == 2 * 6
    first = model.participants_.loc["sub-01"]
    widths = sorted(e.width for e in ellipses if e.get_center() == (first["z1"], first["z2"]))
    # Half the mass of a two-dimensional normal lies within 1.1774 sd, 95% within 2.4477.
    np.testing.assert_allclose(widths, 2 * first["z1_sd"] * np.array([1.1774, 2.4477]), rtol=1e-4)


def test_groups_have_colours_of_their_own(model: NTFA, simulation: tuple) -> None:
    axes = plot_embeddings(model.participants_, simulation[1].participant_groups)
    assert len({to_hex(line.get_color()) for line in axes.lines}) == 3


@pytest.mark.parametrize(("n", "dim"), [(1, 1), (1, 2), (2, 3), (60, 1), (60, 2)])
def test_few_and_many_embeddings(n: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    names = [f"z{i + 1}" for i in range(dim)]
    index = [f"participant with a rather long name {i}" for i in range(n)]
    table = pd.DataFrame(rng.normal(size=(n, dim)), index=index, columns=names)
    table[[f"{name}_sd" for name in names]] = 0.1
    groups = pd.Series([f"group {i % 20}" for i in range(n)], index=index)
    axes = plot_embeddings(table, groups)
    axes.figure.canvas.draw()
    assert len(axes.texts) == n
    assert len(plot_embeddings(table).texts) == n


def test_any_two_dimensions_can_be_shown() -> None:
    table = pd.DataFrame(
        [[1.0, 2.0, 3.0, 0.1, 0.2, 0.3]], index=["a"], columns=["z1", "z2", "z3", "z1_sd", "z2_sd", "z3_sd"]
    )
    axes = plot_embeddings(table, dimensions=(3, 1))
    assert axes.lines[0].get_xydata().tolist() == [[3.0, 1.0]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("z3", "z1")


def test_a_dimension_that_is_not_there_is_named(model: NTFA) -> None:
    with pytest.raises(ValueError, match="no dimension 3"):
        plot_embeddings(model.participants_, dimensions=(1, 3))


def test_pictures_are_drawn_where_they_are_told(model: NTFA) -> None:
    _, axes = plt.subplots(1, 5)
    assert plot_embeddings(model.stimuli_, ax=axes[0]) is axes[0]
    assert plot_bound(model.history_, model.n_data_, ax=axes[1]) is axes[1]
    drawn = plot_factors(model.factors_, model.coordinates_, axes=axes[2:])
    assert [one is other for one, other in zip(drawn, axes[2:], strict=True)] == [True] * 3
    assert len(plt.get_fignums()) == 1


def test_the_bound_is_shown_a_datum(model: NTFA) -> None:
    axes = plot_bound(model.history_, model.n_data_)
    assert isinstance(axes, Axes)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), model.history_["bound"] / model.n_data_)
    one = model.history_.head(1)
    plot_bound(one, model.n_data_).figure.canvas.draw()


def test_factors_are_circles_of_their_radius_in_three_views(model: NTFA) -> None:
    views = plot_factors(model.factors_, model.coordinates_)
    assert [axes.get_title() for axes in views] == ["sagittal", "coronal", "axial"]
    mean = model.factors_.groupby("factor")[["x", "y", "z", "width"]].mean()
    for axes, (across, up) in zip(views, ("yz", "xz", "xy"), strict=True):
        circles = [patch for patch in axes.patches if isinstance(patch, Ellipse)]
        np.testing.assert_allclose([circle.get_center() for circle in circles], mean[[across, up]])
        np.testing.assert_allclose([circle.width for circle in circles], 2 * mean["width"])
        np.testing.assert_allclose([circle.height for circle in circles], 2 * mean["width"])


def test_many_factors_are_drawn_without_numbers(model: NTFA) -> None:
    rng = np.random.default_rng(0)
    many = pd.DataFrame(rng.normal(size=(60, 4)) * 20 + 30, columns=["x", "y", "z", "width"]).assign(factor=range(60))
    for axes in plot_factors(many, model.coordinates_):
        assert len(axes.patches) == 60
        assert not axes.texts


# --- what the report is made from


def test_labels_are_those_that_never_change_within_a_participant(study: Study) -> None:
    trials = study.trials.assign(block=range(study.n_trials), scanner="A")
    labelled = Study.from_arrays(study.frames, trials, study.coordinates)
    assert label_table(labelled, "participant").columns.tolist() == ["group"]
    assert label_table(labelled, "stimulus").columns.tolist() == ["category"]
    assert label_table(labelled, "participant").index.tolist() == study.participants


def test_separation_is_one_only_if_groups_are_apart() -> None:
    index = list("abcdef")
    groups = pd.Series(["x", "x", "y", "y", "z", "z"], index=index)
    apart = pd.DataFrame({"z1": [0, 0.1, 5, 5.1, 9, 9.1], "z2": 0.0, "z1_sd": 1.0, "z2_sd": 1.0}, index=index)
    assert separation(apart, groups).agreement == 1
    assert separation(apart, groups).n_groups == 3
    assert separation(apart.sample(frac=1, random_state=0), groups).agreement == 1
    mixed = apart.assign(z1=[0, 5, 0.1, 9, 5.1, 9.1])
    assert separation(mixed, groups).agreement < 0.5
