"""A command that is told to stop does, wherever it is just then."""

import os
import signal
import sys
import threading
import time
import weakref

import pytest

from ntfa.cli.stopping import stopping_cleanly
from ntfa.errors import Interrupted

NUMBERS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_an_interruption_after_cleaning_up(number: int) -> None:
    cleaned = []
    with pytest.raises(Interrupted) as caught, stopping_cleanly():  # noqa: PT012
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            cleaned.append(True)
    assert caught.value.signal_number == number
    assert cleaned == [True]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_while_an_object_is_cleaned_up_is_not_forgotten(number: int) -> None:
    """Python forgets exceptions there; the command would have gone on as if nothing had been said."""

    class Thing:
        pass

    def clean_up(reference: object) -> None:
        os.kill(os.getpid(), number)
        for _ in range(1000):
            pass

    thing = Thing()
    reference = weakref.ref(thing, clean_up)
    with pytest.raises(Interrupted) as caught, stopping_cleanly():  # noqa: PT012
        del thing
        assert reference() is None
        time.sleep(10)
    assert caught.value.signal_number == number


def test_everything_is_as_before_afterwards() -> None:
    numbers = [*NUMBERS, signal.SIGALRM]
    before = [*map(signal.getsignal, numbers), sys.unraisablehook]
    with stopping_cleanly():
        pass
    assert [*map(signal.getsignal, numbers), sys.unraisablehook] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_in_another_thread_nothing_is_done() -> None:
    seen = []

    def work() -> None:
        with stopping_cleanly():
            seen.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
