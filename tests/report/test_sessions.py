"""Sessions of simulated people: embeddings come out again if people do, and the report says so."""

from pathlib import Path

import numpy as np
import pytest
from helpers import naming

from ntfa import NTFA, Study, simulate
from ntfa.analyses.retest import retest
from ntfa.errors import ModelError, StudyError
from ntfa.report.build import write_report
from ntfa.report.sessions import FILE, read_sessions, retest_in_words, sessions_of

SETTINGS = {"n_factors": 6, "max_epochs": 60, "response": "loadings", "uncertainty": "laplace", "random_state": 0}


@pytest.fixture(scope="module")
def study() -> Study:
    """12 participants, 6 stimuli, two sessions of two runs."""
    sizes = {"n_participants": 12, "n_stimuli": 6, "n_voxels": 300, "n_factors": 200, "n_runs": 4}
    made = simulate("mdtb", random_state=0, **sizes).study
    runs = sorted(made.trials["run"].unique())
    return relabelled(made, np.where(made.trials["run"].isin(runs[:2]), "a", "b"))


def relabelled(study: Study, sessions: np.ndarray) -> Study:
    return Study(study.coordinates, study.trials.assign(session=sessions), study.frames, study.mask_img)


@pytest.fixture(scope="module")
def model(study: Study) -> NTFA:
    return NTFA(**SETTINGS).fit(study)


def swapped(study: Study) -> Study:
    """The second session of everybody is that of the next person."""
    labels = study.participants
    following = dict(zip(labels, [*labels[1:], labels[0]], strict=True))
    who = study.trials["participant"]
    trials = study.trials.assign(participant=who.where(study.trials["session"] == "a", who.map(following)))
    frames = {}
    for label in labels:
        before = labels[labels.index(label) - 1]
        frames[label] = np.concatenate([study.frames[label], study.frames[before]])
    moved = (trials["session"] == "b").to_numpy() * np.array([len(study.frames[label]) for label in who])
    return Study(study.coordinates, trials.assign(start=trials["start"] + moved, stop=trials["stop"] + moved), frames)


def test_people_come_out_again_in_another_session_and_strangers_do_not(model: NTFA, study: Study) -> None:
    points = model.embed_sessions(study)
    assert points.index.names == ["participant", "session"]
    assert points.index.tolist() == [(who, session) for who in study.participants for session in "ab"]
    own = retest(points)
    assert own.icc > 0.4
    assert own.identified > 3 * own.by_chance
    strangers = swapped(study)
    others = retest(NTFA(**SETTINGS).fit(strangers).embed_sessions(strangers))
    assert others.icc < 0.25
    assert others.high < own.icc


def test_factors_stay_in_their_places(model: NTFA, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[NTFA] = []
    refit = NTFA._refit
    monkeypatch.setattr(NTFA, "_refit", lambda *args: fits.append(refit(*args)) or fits[-1])
    model.embed_sessions(study)
    places = ["x", "y", "z", "width"]
    expected = model.factors_.groupby("factor")[places].mean()
    np.testing.assert_allclose(fits[0].factors_.groupby("factor")[places].mean(), expected, rtol=1e-5)


def test_the_report_says_it_also_when_it_is_made_again(model: NTFA, study: Study, tmp_path: Path, page: type) -> None:
    path = tmp_path / "report.html"
    write_report(model, study, path)
    sentences = retest_in_words(model.embed_sessions(study))
    for _ in range(2):
        text = page(path.read_text(encoding="utf-8")).text
        assert all(sentence in text for sentence in sentences)
        write_report(model, None, path)
    (tmp_path / FILE).write_text("participant\tsession\tz1\na\t1\tx\n")
    with pytest.raises(ModelError, match=naming(tmp_path / FILE)):
        read_sessions(tmp_path)


def test_where_it_is_not_measured_it_is_said_why(model: NTFA, study: Study) -> None:
    assert sessions_of(model, relabelled(study, np.full(study.n_trials, "a"))) is None
    few = sessions_of(model, study.select(participants=study.participants[:2]))
    assert few is not None
    assert "2" in few.sentences[0]
    network = NTFA(3, max_epochs=2, response="network", embedding_dim=2, uncertainty="mean-field", random_state=0)
    said = sessions_of(network.fit(study), study)
    assert said is not None
    assert "embed_sessions" in said.sentences[0]
    with pytest.raises(StudyError, match="session"):
        model.embed_sessions(relabelled(study, np.full(study.n_trials, "a")))
