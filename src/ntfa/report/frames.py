"""Spoiled frames as the page shows them: a sentence, and the runs that have any."""

from __future__ import annotations

from dataclasses import dataclass

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.frames import many_spoiled, runs_in_words, spoiled_by_run, spoiled_in_words
from ntfa.report.page import Table


@dataclass(frozen=True)
class SpoiledFrames:
    """What is known of frames that counted less.

    sentences : how many there are, and runs with many of them
    runs : those with any, None if there are none
    n_bad : runs with many
    """

    sentences: list[str]
    runs: Table | None
    n_bad: int


def frames_of(model: TopographicModel) -> SpoiledFrames | None:
    """Collect it from a fitted model; None where all frames counted the same."""
    frames = getattr(model, "frames_", None)
    if frames is None:
        return None
    many, runs = many_spoiled(frames), spoiled_by_run(frames)
    sentences = [spoiled_in_words(frames)]
    if len(many):
        sentences.append(f"Many are in {runs_in_words(many)}: look at these, and leave them out if they are bad.")
    some = runs[runs["spoiled"] > 0].sort_values("spoiled", ascending=False, kind="stable")
    table = None if some.empty else Table.of(some, most=100, numbers=("frames", "spoiled"))
    return SpoiledFrames(sentences, table, len(many))
