"""Copy frames from the machine's memory to a GPU.

A GPU fetches by itself only from pinned memory, which stays where it is. From any other the driver copies with one
thread first, which takes several times as long as the way to the GPU. Here two pieces of pinned memory take turns: one
is filled, by all threads, while the other is on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

PIECE_BYTES = 32 << 20


class Upload:
    """Copies rows to a GPU, as `Tensor.copy_` does.

    Parameters
    ----------
    n_columns : of the rows
    dtype : of the rows, here and there
    """

    def __init__(self, n_columns: int, dtype: torch.dtype) -> None:
        self.at_once = max(1, PIECE_BYTES // (n_columns * dtype.itemsize))
        self.pieces = [_pinned(self.at_once, n_columns, dtype) for _ in range(2)]
        self.arrived = [torch.cuda.Event() for _ in range(2)]

    def __call__(self, target: Tensor, source: Tensor) -> None:
        """Copy rows [n, columns]; the last of them may still be on their way afterwards."""
        for rows, place in zip(source.split(self.at_once), target.split(self.at_once), strict=True):
            piece, arrived = self.pieces[0][: len(rows)], self.arrived[0]
            arrived.synchronize()
            place.copy_(piece.copy_(rows), non_blocking=True)
            arrived.record()
            self.pieces.reverse()
            self.arrived.reverse()


def rows_on(device: torch.device, array: Tensor, pieces: Iterable[Tensor]) -> Iterator[Tensor]:
    """Gather pieces of an array's rows one after the other, each on a device until the next is asked for."""
    copy = Upload(array.shape[1], array.dtype) if device.type == "cuda" else None
    for rows in pieces:
        here = array.index_select(0, rows)
        if copy is None:
            yield here
            continue
        there = torch.empty(here.shape, dtype=here.dtype, device=device)
        copy(there, here)
        yield there


def _pinned(n_rows: int, n_columns: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(n_rows, n_columns, dtype=dtype, pin_memory=True)
