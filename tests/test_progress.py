"""What whoever waits is told."""

import io
import logging
import re
import time

import pytest

from ntfa import progress
from ntfa.progress import duration, stage


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "NOTICED_S", 0.05)
    monkeypatch.setattr(progress, "TICK_S", 0.01)
    monkeypatch.setattr(progress, "BETWEEN_LINES_S", 0.03)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("_impatient")
def test_lines_of_the_log_say_what_takes_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ntfa")
    with stage("Reading", total=4) as one_more:
        one_more()
        time.sleep(0.2)
    assert any(re.match(r"Reading: 1 of 4 \(.*left\)", text) for text in caplog.messages[:-1])
    assert caplog.messages[-1].startswith("Reading: done")


def test_what_is_quick_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ntfa")
    with stage("Reading"):
        pass
    assert caplog.messages == []


@pytest.mark.usefixtures("_impatient")
def test_a_terminal_has_one_line_that_moves_and_goes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "ntfa")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with stage("Outer"), stage("Inner"):
        time.sleep(0.2)
    shown = terminal.getvalue()
    assert "Outer" in shown
    assert "Inner" not in shown
    assert "\n" not in shown
    assert shown.endswith(progress.CLEAR)
    assert len(caplog.messages) == 1


@pytest.mark.usefixtures("_impatient")
def test_nothing_is_shown_to_those_who_did_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(logging.getLogger("ntfa"), "level", logging.WARNING)
    logging.getLogger("ntfa").manager._clear_cache()
    with stage("Reading"):
        time.sleep(0.1)
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("_impatient")
def test_a_stage_that_fails_is_not_said_to_be_done(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ntfa")

    def fail() -> None:
        with stage("Reading"):
            time.sleep(0.1)
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert not any("done" in text for text in caplog.messages)
    with stage("Reading again"):
        time.sleep(0.1)
    assert "Reading again" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_times_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text
