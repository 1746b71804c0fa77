"""Training steps on a GPU, recorded once as a CUDA graph and replayed: hundreds of small launches become one.

What is computed is the same. Noise is drawn on the CPU as ever, for a whole step at a time, and copied to where the
recorded step looks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from ntfa.inference.normal import RandomSource
from ntfa.inference.processes import Share

logger = logging.getLogger("ntfa")

WARM_UP = 2
"""Steps that are taken one launch at a time before one is recorded; libraries set themselves up in these."""


class StepRandomSource(RandomSource):
    """Noise for one step at a time, at a fixed place on a GPU. One step's demand is noted, and served later."""

    def __init__(self, source: RandomSource) -> None:
        self.generator = source.generator
        self.shapes: list[tuple[int, ...]] = []
        self.parts: list[Tensor] = []
        self.next: int | None = None

    def randn_like(self, tensor: Tensor, share: Share | None = None) -> Tensor:
        """Draw as ever, and note the demand; or, while a step is recorded, say where its numbers will lie."""
        if self.next is None:
            self.shapes.append(tuple(tensor.shape))
            return super().randn_like(tensor, share)
        self.next += 1
        return self.parts[self.next - 1]

    def make_room(self, device: torch.device) -> None:
        """Make room for what the last step demanded, on the CPU and on a device."""
        sizes = [int(torch.Size(shape).numel()) for shape in self.shapes]
        # Pinned, so that copies to the GPU do not wait; and kept, because the recorded step reads from this address.
        self.drawn = torch.empty(sum(sizes), dtype=torch.float64, pin_memory=True)
        self.room = torch.empty(sum(sizes), dtype=torch.float64, device=device)
        parts = zip(self.drawn.split(sizes), self.room.split(sizes), self.shapes, strict=True)
        views = [(drawn.view(shape), room.view(shape)) for drawn, room, shape in parts]
        self.rows, self.parts = [drawn for drawn, _ in views], [room for _, room in views]

    def draw(self) -> None:
        """Draw the numbers of the next step, in the order in which it will ask for them."""
        # On the CPU, one tensor at a time and in this order: the same numbers as in steps that are not recorded, and a
        # generator whose state a checkpoint can hold.
        for part in self.rows:
            torch.randn(part.shape, generator=self.generator, out=part)
        self.room.copy_(self.drawn, non_blocking=True)


class Recorder:
    """Takes steps; records one after a warm-up, and replays it from then on.

    noise : what the steps draw from
    """

    def __init__(self, noise: RandomSource, device: torch.device) -> None:
        self.noise, self.device = StepRandomSource(noise), device
        self.stream = torch.cuda.Stream(device)
        self.can_record = True
        self.forget()

    def forget(self) -> None:
        """Start anew, after something that the recorded step refers to was replaced."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.taken = 0

    def __call__(self, step: Callable[[RandomSource], Tensor]) -> Tensor:
        """Take a step.

        step : takes one step from a source of noise, and returns what is to be read off the GPU afterwards; the same
            one in every call
        """
        # Graphs can only be captured on a stream other than the default one, so all steps are taken on this one.
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            if self.graph is None and self.can_record and self.taken >= WARM_UP:
                self._record(step)
            record = self._replay() if self.graph is not None else self._take(step)
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return record

    def _take(self, step: Callable[[RandomSource], Tensor]) -> Tensor:
        self.noise.shapes.clear()
        self.noise.next = None
        self.taken += 1
        return step(self.noise)

    def _replay(self) -> Tensor:
        assert self.graph is not None
        # A graph reads from fixed addresses, so new numbers are copied to where the last ones were.
        self.noise.draw()
        self.graph.replay()
        return self.recorded

    def _record(self, step: Callable[[RandomSource], Tensor]) -> None:
        # Capturing executes nothing: the step that is recorded here is taken when it is first replayed.
        self.noise.make_room(self.device)
        self.noise.next = 0
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.recorded = step(self.noise)
        except RuntimeError as error:
            # Some library routine cannot be recorded; steps are then taken as before, if slower.
            logger.debug("a step cannot be recorded as a CUDA graph: %s", error)
            self.can_record = False
            # The generator would wait for the end of the recording for good, and torch.rand raise until Python ends.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
        else:
            self.graph = graph
