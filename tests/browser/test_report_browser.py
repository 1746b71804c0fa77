"""The report in a real browser, opened from disk with the network off."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from browsing import SIZES, fits, opened

from ntfa import NTFA, Study
from ntfa.cli import main
from ntfa.estimators.base import TopographicModel
from ntfa.study.atlas import Atlas
from ntfa.uncertainty.differences import difference

MINUS = "\N{MINUS SIGN}"
EVIL = ["<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>", "a/b\\c & 'd'", "🧠 " + "x" * 200]


def save(model: TopographicModel, study: Study | None, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a report without its static figures, which take longer than the rest."""
    monkeypatch.setattr("ntfa.report.build.model_pictures", lambda model, labels: [])
    monkeypatch.setattr("ntfa.report.evidence.data_pictures", lambda *rest: [])
    model.generate_report(study).save_as_html(path)
    return path


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_the_demo_report_works(browser: Any, demo: Path, size: str) -> None:
    people = NTFA.load(demo).participants_
    with opened(browser, demo / "report.html", size) as one:
        page = one.page
        wide, visible = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide <= visible
        assert page.locator("[data-plot=participant] .mark").count() == 9
        assert page.locator("[data-plot=stimulus] .mark").count() == 8
        assert page.locator("[data-plot=participant] ellipse").count() == 18

        page.mouse.move(*one.middle("participant", 7))
        tip = page.locator("#tip")
        assert tip.locator("strong").text_content() == "sub-08"
        assert "group: Group 3" in tip.text_content()
        page.mouse.move(1, 1)
        assert tip.is_hidden()

        page.mouse.click(*one.middle("participant", 7))
        assert page.locator("[data-plot=participant] .card h4").all_text_contents() == ["sub-08"]
        assert page.locator("[data-plot=participant] .card .brain circle").count() == 9
        assert page.locator("[data-plot=participant] .card canvas").count() == 3
        page.locator("[data-plot=participant] .card circle").first.hover()
        assert re.search(r"factor \d.*at \(.*\) mm.*width .* mm.*mean weight", tip.text_content())

        page.keyboard.down("Shift")
        page.mouse.click(*one.middle("participant", 3))
        page.keyboard.up("Shift")
        wanted = difference(people, "sub-08", "sub-04")
        assert float(one.verdict("participant").get_attribute("data-p")) == pytest.approx(wanted.p, rel=1e-3)
        assert "sub-08 and sub-04" in one.verdict("participant").text_content()
        assert ("< 0.001" in one.verdict("participant").text_content()) == (wanted.p < 0.001)
        assert page.locator("[data-plot=participant] .card h4").all_text_contents() == [
            "sub-08",
            "sub-04",
            "Difference",
        ]
        assert page.locator("[data-plot=participant] .card canvas").count() == 9

        before = page.locator("[data-plot=participant] .mark path").evaluate_all(
            "all => all.map(e => e.getAttribute('stroke'))"
        )
        assert len(set(before)) == 3
        one.choose("participant", "Colour by", "")
        after = page.locator("[data-plot=participant] .mark path").evaluate_all(
            "all => all.map(e => e.getAttribute('stroke'))"
        )
        assert len(set(after)) == 1


def test_every_mark_can_be_told_from_a_dark_page(
    browser: Any, crowd: Callable[[int], NTFA], made_up: Callable[[int], Study], tmp_path: Path
) -> None:
    """Of eight groups one is black on paper."""
    study = made_up(40)
    trials = study.trials.assign(kind=[f"kind {int(label[-3:]) % 8}" for label in study.trials["stimulus"]])
    coloured = Study.from_arrays(dict(study.frames), trials, study.coordinates)
    crowd(40).show_embeddings(coloured, kind="stimulus").save_as_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html", color_scheme="dark") as one:
        strokes = one.page.locator(".mark path").evaluate_all("all => all.map(e => getComputedStyle(e).stroke)")
        brightness = [max(map(int, re.findall(r"\d+", stroke)[:3])) for stroke in strokes]
        assert len(set(strokes)) == 8
        assert min(brightness) > 90


def test_everything_can_be_reached_by_keyboard(browser: Any, demo: Path) -> None:
    with opened(browser, demo / "report.html") as one:
        page = one.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.locator("[data-plot=stimulus] .mark[tabindex='0']").focus()
        assert page.locator("#tip strong").text_content() == "task1_stim1"
        page.keyboard.press("ArrowRight")
        assert page.locator("#tip strong").text_content() == "task1_stim2"
        page.keyboard.press("Enter")
        assert page.locator("[data-plot=stimulus] .card h4").all_text_contents() == ["task1_stim2"]
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Shift+Enter")
        assert "task1_stim2 and task1_stim3" in one.verdict("stimulus").text_content()
        assert page.locator("[data-plot=stimulus] .mark[tabindex='0']").count() == 1
        one.choose("stimulus", "Compare with", 5)
        assert len(page.locator("[data-plot=stimulus] .card h4").all_text_contents()) == 3
        page.locator("[data-plot=stimulus] .mark[tabindex='0']").focus()
        page.keyboard.press("Escape")
        assert page.locator("[data-plot=stimulus] .card").count() == 0
        assert "Nothing" in one.verdict("stimulus").text_content()
        page.locator("[data-copy]").click()
        assert page.locator("[data-copy] + [role=status]").text_content() in ("Copied.", "Selected; press Ctrl+C.")


def test_the_page_can_be_read_without_script_and_printed(browser: Any, demo: Path, tmp_path: Path) -> None:
    with opened(browser, demo / "report.html", java_script_enabled=False) as one:
        for alt in ("Crosses mark posterior means", "Factors averaged over participants", "The bound over the fit"):
            assert one.page.locator(f"img[alt^='{alt}']").is_visible()
        assert one.page.locator(".live").first.is_hidden()
        assert one.page.locator("#map-participant-0").is_visible()
    with opened(browser, demo / "report.html") as one:
        one.page.emulate_media(media="print")
        assert one.page.locator("[data-plot=participant]").is_hidden()
        one.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert one.page.locator("img[alt^='Crosses mark posterior means']").is_visible()
        one.page.emulate_media(media="screen")
        one.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert one.page.locator("img[alt^='Crosses mark posterior means']").is_hidden()


@pytest.fixture(scope="module")
def of_dimension(study: Study) -> Callable[[int], NTFA]:
    def make(dim: int) -> NTFA:
        model = NTFA(
            n_factors=2, embedding_dim=dim, max_epochs=1, random_state=0, uncertainty="mean-field", response="network"
        ).fit(study)
        module = model._fitted.module
        with torch.no_grad():
            # Each a step further from the first, by half a posterior sd and a little in every dimension.
            steps = 0.05 * torch.arange(len(study.participants))[:, None] + 0.01 * torch.arange(dim)
            module.z_participant.mean.copy_(steps * torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])[:dim])
        model._set_fitted_attributes(model._fitted)
        # As a posterior with correlations would have it.
        sds = model.participants_[[f"z{i + 1}_sd" for i in range(dim)]]
        for i in range(dim):
            for j in range(i):
                product = (0.4 / dim) * sds[f"z{i + 1}_sd"] * sds[f"z{j + 1}_sd"]
                model.participants_[f"z{j + 1}_z{i + 1}_cov"] = product
        return model

    return make


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_the_page_shows_differences_as_python_finds_them(
    browser: Any, of_dimension: Callable[[int], NTFA], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dim: int
) -> None:
    model = of_dimension(dim)
    labels, levels = model.participants_.index, []
    with opened(browser, save(model, None, tmp_path / "report.html", monkeypatch)) as one:
        assert one.page.locator("[data-plot=participant] .mark").count() == len(labels)
        one.choose("participant", "Select", 0)
        for i in range(1, len(labels)):
            one.choose("participant", "Compare with", i)
            wanted = difference(model.participants_, labels[0], labels[i])
            level = 1 - float(one.verdict("participant").get_attribute("data-p"))
            assert level == pytest.approx(wanted.level, abs=1e-4)
            effect = float(one.verdict("participant").get_attribute("data-effect"))
            assert effect == pytest.approx(wanted.effect, rel=1e-3, abs=1e-6)
            distance = float(one.verdict("participant").get_attribute("data-distance"))
            assert distance == pytest.approx(wanted.distance, abs=1e-5)
            levels.append(level)
        if dim > 2:
            assert "of variance" in one.page.locator("[data-plot=participant] .canvas > svg").first.text_content()
            one.choose("participant", "Show", dim)
    assert min(levels) < 0.5 < 0.8 < max(levels)


def test_hostile_labels_are_shown_as_they_are(
    browser: Any, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = dict(zip(study.participants, EVIL, strict=False))
    trials = study.trials.assign(participant=study.trials["participant"].replace(names))
    trials["<b>age</b>"] = trials["participant"].map(lambda p: len(p) + 0.5)
    frames = {names.get(p, p): array for p, array in study.frames.items()}
    evil = Study.from_arrays(frames, trials, study.coordinates)
    model = NTFA(n_factors=2, max_epochs=2, random_state=0).fit(evil)
    with opened(browser, save(model, evil, tmp_path / "report.html", monkeypatch), "phone") as one:
        wide, visible = one.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= visible
        for i, label in enumerate(model.participants_.index):
            one.choose("participant", "Select", i)
            assert one.page.locator("[data-plot=participant] .card h4").first.text_content() == label
        one.choose("participant", "Colour by", one.data()["kinds"]["participant"]["columns"].index("<b>age</b>"))
        assert one.page.locator("[data-plot=participant] .legend .ramp").count() == 1


def test_a_crowd_is_drawn(browser: Any, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hundred stimuli: every one has a mark, and the nearest one to the pointer is meant."""
    random = np.random.default_rng(0)
    rows = [
        {"participant": f"sub-{i % 2}", "stimulus": f"stim-{i:03}", "start": i // 2, "stop": i // 2 + 1}
        for i in range(500)
    ]
    frames = {f"sub-{i}": random.normal(size=(250, 60)) for i in range(2)}
    crowd = Study.from_arrays(frames, pd.DataFrame(rows), random.uniform(-40, 40, (60, 3)))
    model = NTFA(n_factors=2, max_epochs=1, init="kmeans", random_state=0).fit(crowd)
    with opened(browser, save(model, None, tmp_path / "report.html", monkeypatch)) as one:
        assert one.page.locator("[data-plot=stimulus] .mark").count() == 500
        one.page.mouse.click(*one.middle("stimulus", 123))
        chosen = one.page.locator("[data-plot=stimulus] .card h4").first.text_content()
        places = np.array(
            one.page.locator("[data-plot=stimulus] .mark").evaluate_all(
                "all => all.map(e => e.getAttribute('transform').match(/[-\\d.]+/g).map(Number))"
            )
        )
        distance = np.linalg.norm(places - places[123], axis=1)
        assert distance[model.stimuli_.index.get_loc(chosen)] < 1


# --- what fits on every screen, in light and in the dark


@pytest.mark.parametrize("n_points", [3, 300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_screen_holds_the_page_and_two_compared(
    browser: Any,
    crowd: Callable[[int], NTFA],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: str,
    scheme: str,
    n_points: int,
) -> None:
    path = save(crowd(n_points), None, tmp_path / "report.html", monkeypatch)
    with opened(browser, path, size, color_scheme=scheme) as one:
        page = one.page
        one.choose("stimulus", "Select", 0)
        one.choose("stimulus", "Compare with", 2)
        assert fits(page)
        boxes = [card.bounding_box() for card in page.locator("[data-plot=stimulus] .card").all()]
        assert len(boxes) == 3
        assert max(box["width"] for box in boxes) - min(box["width"] for box in boxes) <= 1
        tops = {round(box["y"]) for box in boxes}
        assert len(tops) == (1 if size == "desktop" else 3)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", colour)[:3])) < 200) == (scheme == "dark")
        spots = np.array([one.middle("stimulus", i) for i in (0, 1, 2)])
        assert (spots[:, 0] > 0).all()
        assert (spots[:, 0] < SIZES[size][0]).all()
        # Ellipses of hundreds of points are not drawn, but those of the two that are chosen.
        assert page.locator("[data-plot=stimulus] ellipse").count() == (6 if n_points == 3 else 4)


def test_words_of_tables_are_never_broken(browser: Any, demo: Path) -> None:
    with opened(browser, demo / "report.html", "phone") as one:
        heights = one.page.evaluate(
            "[...document.querySelectorAll('#factors td')].map(e => e.getBoundingClientRect().height)"
        )
        assert max(heights) < 40


# --- many points


def test_points_are_found_zoomed_and_cleared(
    browser: Any, crowd: Callable[[int], NTFA], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(crowd(40), None, tmp_path / "report.html", monkeypatch)
    with opened(browser, path) as one:
        page, plot = one.page, one.page.locator("[data-plot=stimulus]")
        assert plot.locator(".label").count() < 40
        plot.locator("input[type=search]").fill("stim-01")
        assert plot.locator(".mark:not(.dim)").count() == 10
        plot.locator("input[type=search]").press("Enter")
        assert plot.locator(".card h4").first.text_content() == "stim-010"
        before = np.subtract(one.middle("stimulus", 3), one.middle("stimulus", 7))
        plot.get_by_role("button", name="Zoom in").click()
        after = np.array(
            plot.locator(".mark").evaluate_all(
                "all => all.map(e => e.getAttribute('transform').match(/[-\\d.]+/g).map(Number))"
            )
        )
        assert np.linalg.norm(after[3] - after[7]) == pytest.approx(1.5 * np.linalg.norm(before), rel=0.02)
        plot.get_by_role("button", name="Zoom in").focus()
        page.keyboard.press("Escape")
        assert plot.locator(".card").count() == 0
        assert plot.locator(".mark.dim").count() == 0
        page.keyboard.press("Escape")
        assert np.subtract(one.middle("stimulus", 3), one.middle("stimulus", 7)) == pytest.approx(before, abs=1)


def test_taps_select_compare_and_clear(browser: Any, demo: Path) -> None:
    with opened(browser, demo / "report.html", "phone", has_touch=True, is_mobile=True) as one:
        assert one.page.locator(".for-touch").is_visible()
        assert one.page.locator(".for-mouse").is_hidden()
        for place, chosen in ((1, ["sub-02"]), (8, ["sub-02", "sub-09", "Difference"]), (8, ["sub-02"]), (1, [])):
            one.page.touchscreen.tap(*one.middle("participant", place))
            assert one.page.locator("[data-plot=participant] .card h4").all_text_contents() == chosen


# --- slices


def test_slices_show_what_is_predicted(browser: Any, demo: Path) -> None:
    model = NTFA.load(demo)
    labels = model._fitted.labels
    one_map = model.predict([("sub-08", stimulus) for stimulus in labels.stimuli]).mean(0)
    with opened(browser, demo / "report.html") as one:
        one.choose("participant", "Select", 7)
        said = one.page.locator("[data-plot=participant] .value").text_content().replace(MINUS, "-")
        *place, value = (float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", said))
        near = np.linalg.norm(model.coordinates_ - place, axis=1) < 6
        assert one_map[near].min() - 0.02 <= value <= one_map[near].max() + 0.02
        # It starts where the map is strongest.
        assert abs(value) > 0.8 * np.abs(one_map).max()
        slider = one.page.locator("[data-plot=participant] input[type=range]").first
        slider.focus()
        one.page.keyboard.press("ArrowLeft")
        moved = one.page.locator("[data-plot=participant] .value").text_content()
        assert moved.replace(MINUS, "-") != said


def test_the_table_of_factors_follows_the_choice(browser: Any, demo: Path) -> None:
    model = NTFA.load(demo)
    with opened(browser, demo / "report.html") as one:
        one.page.locator("label:has-text('Whose factors') select").select_option("4")
        cells = one.page.locator("[data-table=factors] tbody tr").first.locator("td").all_text_contents()
        own = model.factors_[(model.factors_["participant"] == "sub-05") & (model.factors_["factor"] == 1)]
        shown = [float(text.replace(MINUS, "-")) for text in cells[1:5]]
        np.testing.assert_allclose(shown, own[["x", "y", "z", "width"]].to_numpy()[0], atol=0.051)


def test_a_page_without_scripts_is_complete(browser: Any, demo: Path) -> None:
    assert main(["report", str(demo), "--static", "-q"]) == 0
    with opened(browser, demo / "report_static.html", "phone") as one:
        assert fits(one.page)
        assert one.page.locator(".live").first.is_hidden()
        assert one.page.locator("img[alt^='Crosses mark posterior means']").is_visible()


def test_newcomers_have_colours_and_lines_to_first_sessions(
    browser: Any, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = study.participants
    settings: dict[str, Any] = {"response": "loadings", "embedding_dim": (2, 2), "uncertainty": "laplace"}
    model = NTFA(3, max_epochs=20, random_state=0, **settings).fit(study.select(participants=people[:5]))
    added = model.add(study.select(participants=people[5:])).add(study.select(participants=people[:1]), session="late")
    with opened(browser, save(added, None, tmp_path / "report.html", monkeypatch)) as one:
        marks = one.page.locator("[data-plot=participant] .mark path")
        colours = marks.evaluate_all("all => all.map(e => e.getAttribute('stroke'))")
        assert len(set(colours[:5])) == 1
        assert len(set(colours)) == 3
        line = one.page.locator("[data-plot=participant] path.session")
        assert line.get_attribute("stroke") == colours[6]
        assert one.page.locator("[data-plot=stimulus] path.session").count() == 0
        assert "Who was added" in one.page.locator("#embeddings").text_content()


# --- regions


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_regions_are_named_where_one_points(
    browser: Any, crowd: Callable[[int], NTFA], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, scheme: str
) -> None:
    model = crowd(3)
    affine = np.diag([10.0, 10.0, 10.0, 1.0])
    affine[:3, 3] = -100
    values = np.ones((21, 21, 21), dtype=np.int64)
    values[10:] = 2
    atlas = Atlas(values, affine, {1: "Left of all", 2: "Right <i>of</i> all"}, "sides")
    monkeypatch.setattr("ntfa.report.build.model_pictures", lambda model, labels: [])
    model.generate_report(atlas=atlas).save_as_html(tmp_path / "report.html")
    centres = model.factors_.groupby("factor")[["x", "y", "z"]].mean().to_numpy()
    with opened(browser, tmp_path / "report.html", size, color_scheme=scheme) as one:
        rows = one.page.locator("[data-table=factors] tbody tr")
        assert [rows.nth(k).locator("td").nth(1).text_content() for k in range(2)] == atlas.names(centres)
        one.page.locator("[data-brain] circle").first.focus()
        assert any(name in one.page.locator("#tip").text_content() for name in set(atlas.names(centres)))
        one.choose("stimulus", "Select", 1)
        said = one.page.locator("[data-plot=stimulus] .value").text_content().replace(MINUS, "-")
        # The place said is the middle of a cube, and its name that of the middle of the voxels in it.
        place = [float(number) for number in re.findall(r"-?\d+", said)[:3]]
        near = np.abs(model.coordinates_ - place).max(1) <= one.data()["volumes"]["size"] / 2 + 1
        assert said.rsplit(", ", 1)[1] in atlas.names(model.coordinates_[near])
        assert fits(one.page)
