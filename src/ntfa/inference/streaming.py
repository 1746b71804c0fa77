"""Frames that stay on disk: read block by block when they are needed, the next one while this one is in use.

Two blocks are in memory at a time. The gradient is that of the whole study: every block adds its part of the
log likelihood and of the gradient with respect to what was drawn, then makes room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ntfa.errors import StudyError
from ntfa.inference.projection import FrameBlock, place_blocks

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class StoredBlock(FrameBlock):
    """Frames in a file; `array` has their shape and type, but no memory.

    path, offset : the file, and where in it the array of float32 starts
    row_bytes : from the start of one row to that of the next; more than a row's own where the file has other columns
    """

    path: Path = field(kw_only=True)
    offset: int = field(kw_only=True)
    row_bytes: int = field(kw_only=True)

    @classmethod
    def of(cls, array: np.memmap[Any, Any], runs: Sequence[slice]) -> StoredBlock:
        """Refer to some rows of an array that is mapped from a file, in C order; or of its first columns."""
        path, shape = Path(str(array.filename)), torch.empty(array.shape, device="meta")
        return cls(shape, runs, path=path, offset=array.offset, row_bytes=array.strides[0])

    def load(self, room: Tensor) -> FrameBlock:
        """Read the frames into the first rows of `room` [at least n_frames, V]."""
        in_one_piece = self.row_bytes == self.array.shape[1] * 4
        start = 0
        with open(self.path, "rb", buffering=0) as file:
            for run in self.runs:
                pieces = [run] if in_one_piece else [slice(row, row + 1) for row in range(run.start, run.stop)]
                for piece in pieces:
                    stop = start + piece.stop - piece.start
                    file.seek(self.offset + piece.start * self.row_bytes)
                    _fill(file, room[start:stop].numpy().data.cast("B"), self.path)
                    start = stop
        return FrameBlock(room[:start], [slice(0, start)])


def _fill(file: Any, view: memoryview, path: Path) -> None:
    while view:
        n_read = file.readinto(view)
        if not n_read:
            raise StudyError(f"{path}: ends before its last frame; was it changed during the fit?")
        view = view[n_read:]


def is_stored(blocks: Sequence[FrameBlock]) -> bool:
    """Whether frames are on disk."""
    return isinstance(blocks[0], StoredBlock)


def loaded(blocks: Sequence[FrameBlock], device: torch.device) -> Iterator[FrameBlock]:
    """Go through blocks with their frames in memory; those on disk are there until the next one is asked for."""
    stored = [block for block in blocks if isinstance(block, StoredBlock)]
    if not stored:
        yield from blocks
        return
    largest, n_voxels = max(block.n_frames for block in stored), stored[0].array.shape[1]
    rooms = [torch.empty(largest, n_voxels) for _ in range(min(2, len(stored)))]
    with ThreadPoolExecutor(1) as reader:
        waiting: Future[FrameBlock] = reader.submit(stored[0].load, rooms[0])
        for i in range(len(stored)):
            block = waiting.result()
            if i + 1 < len(stored):
                waiting = reader.submit(stored[i + 1].load, rooms[(i + 1) % 2])
            yield place_blocks([block], device)[0]
