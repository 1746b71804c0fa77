"""What a study's design can and cannot tell, for the report; kept beside it, so that it can be made again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ntfa.errors import ModelError
from ntfa.files.reading import read_json
from ntfa.study import Study
from ntfa.study.design import Limit, limits_of, share_recorded

FILE = "design.json"


@dataclass(frozen=True)
class Design:
    """A design in sentences.

    recorded : which pairs of participant and stimulus there are
    limits : what it cannot tell
    """

    recorded: str
    limits: Sequence[Limit] = ()

    @property
    def points(self) -> list[str]:
        """What cannot be concluded, what can all the same, and what to do, one entry per limit."""
        return [
            " ".join(filter(None, (_as_sentence(one.cannot), one.can, _as_sentence(one.remedy)))) for one in self.limits
        ]


def design_of(study: Study) -> Design:
    """Look at who saw what, and in which run."""
    n, n_possible = share_recorded(study.trials)
    if n == n_possible:
        recorded = f"Every participant saw every stimulus: all {n:,} pairs were recorded."
    else:
        recorded = (
            f"{n:,} of {n_possible:,} pairs of participant and stimulus were recorded ({n / n_possible:.0%}); what the "
            "model says of the others is a prediction."
        )
    return Design(recorded, tuple(limits_of(study.trials)))


def _as_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def write_design(folder: Path, design: Design) -> None:
    """Keep a design beside the report."""
    text = json.dumps(asdict(design), indent=2, ensure_ascii=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def read_design(folder: Path) -> Design | None:
    """Read back what `write_design` kept; None where there is nothing."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content = read_json(path)
        return Design(_text(content["recorded"]), tuple(_limit(one) for one in content["limits"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); remove it to do without") from error


def _limit(entry: Any) -> Limit:
    return Limit(**{str(name): _text(value) for name, value in entry.items()})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:80]!r} is no text")
    return value
