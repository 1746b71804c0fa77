"""Copy frames from the machine's memory to a GPU.

A GPU fetches by itself only from pinned memory, which stays where it is. From any other the driver copies with one
thread first, which takes several times as long as the way to the GPU. Here two pieces of pinned memory take turns: one
is filled, by all threads, while the other is on its way.

What comes before a fit's first step looks at all frames several times. Where there is room they are uploaded once:
within `uploaded_once`, `as_tensor` of an array is what is on the GPU already.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

PIECE_BYTES = 32 << 20
TIMES_THE_ROOM = 2.5
"""How many times what is uploaded must be free on the GPU: the frames of the fit will lie beside it."""

_uploaded: ContextVar[Mapping[int, tuple[np.ndarray, Tensor]]] = ContextVar("uploaded", default=MappingProxyType({}))
"""By the array's number, the array, which so stays what the number stands for, and what is on a GPU."""


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


@contextmanager
def uploaded_once(device: torch.device, arrays: Iterable[np.ndarray]) -> Iterator[None]:
    """Have arrays of frames on a GPU until the context ends, if there is room for them and for a fit's frames."""
    known = _uploaded.get()
    new = [array for array in arrays if id(array) not in known]
    if not new or not _have_room(device, sum(array.nbytes for array in new)):
        yield
        return
    token = _uploaded.set({**known, **{id(array): (array, _on_gpu(as_tensor(array), device)) for array in new}})
    try:
        yield
    finally:
        _uploaded.reset(token)


def _have_room(device: torch.device, n_bytes: int) -> bool:
    return device.type == "cuda" and torch.cuda.mem_get_info(device)[0] > TIMES_THE_ROOM * n_bytes


def _on_gpu(array: Tensor, device: torch.device) -> Tensor:
    there = torch.empty(array.shape, dtype=array.dtype, device=device)
    Upload(array.shape[1], array.dtype)(there, array)
    return there


def as_tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor: its copy on a GPU if there is one, or one that shares its memory if that can be."""
    if id(array) in _uploaded.get():
        return _uploaded.get()[id(array)][1]
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def rows_on(device: torch.device, array: Tensor, pieces: Iterable[Tensor]) -> Iterator[Tensor]:
    """Gather pieces of an array's rows one after the other, each on a device until the next is asked for."""
    from_memory = device.type == "cuda" and array.device.type == "cpu"
    copy = Upload(array.shape[1], array.dtype) if from_memory else None
    for rows in pieces:
        here = array.index_select(0, rows.to(array.device))
        if copy is None:
            yield here
            continue
        there = torch.empty(here.shape, dtype=here.dtype, device=device)
        copy(there, here)
        yield there


def _pinned(n_rows: int, n_columns: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(n_rows, n_columns, dtype=dtype, pin_memory=True)
