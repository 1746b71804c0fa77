"""`ntfa`, but with checkpoints at every step and no report, and the second process dies once, in the middle."""

import os
import signal
import sys
from typing import Any

from ntfa.cli import main
from ntfa.fitting import checkpoint
from ntfa.fitting.training import Trainer
from ntfa.inference.bounds import Bound
from ntfa.report import build

checkpoint.SECONDS_BETWEEN = 0.0
build.write_report = lambda model, study, path, *rest, **more: path.write_text("<h1>")
DIES_AT = 7

step = Trainer.step


def dying_step(trainer: Trainer, factor: Any) -> Bound:
    """Take a step, or die."""
    is_first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if os.environ["RANK"] == "1" and is_first_life and len(trainer.history.bounds) == DIES_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(trainer, factor)


Trainer.step = dying_step  # type: ignore[method-assign]
sys.exit(main(sys.argv[1:]))
