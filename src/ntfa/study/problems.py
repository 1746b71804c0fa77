"""What is wrong with a dataset: collected, so that all of it can be said at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ntfa.errors import StudyError

MOST_SHOWN, MOST_NAMED = 200, 20


@dataclass(frozen=True)
class Problem:
    """Something wrong: whose it is (None: everybody's), and a sentence that begins with the file."""

    participant: str | None
    text: str


def listed(problems: Sequence[Problem]) -> str:
    """Say all problems: one in a line, several as a list by participant."""
    if len(problems) == 1:
        return problems[0].text
    concerned = sorted({one.participant for one in problems if one.participant})
    lines = [f"{len(problems)} problems" + (f", with {len(concerned)} participant(s):" if concerned else ":")]
    for participant in sorted(dict.fromkeys(one.participant for one in problems), key=lambda label: label or ""):
        lines.append(f"  {participant or 'the dataset'}")
        lines += [f"    {one.text}" for one in problems if one.participant == participant]
    if len(lines) > MOST_SHOWN:
        lines = [*lines[:MOST_SHOWN], f"    ... and {len(lines) - MOST_SHOWN} more lines"]
    if concerned:
        labels = (
            "".join(" " + label.removeprefix("sub-") for label in concerned) if len(concerned) <= MOST_NAMED else ""
        )
        lines.append(f"Repair these, or leave participants out with --exclude-participant{labels}")
    return "\n".join(lines)


def refuse(problems: Sequence[Problem]) -> None:
    """Raise a `StudyError` that says all problems, if there are any; what several participants share, once."""
    whose: dict[str, set[str | None]] = {}
    for one in problems:
        whose.setdefault(one.text, set()).add(one.participant)
    different = [Problem(next(iter(own)) if len(own) == 1 else None, text) for text, own in whose.items()]
    if different:
        raise StudyError(listed(different))
