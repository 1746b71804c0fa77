"""The training loop: full-batch Adam on a bound, resumable to the bit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from ntfa.errors import ModelError
from ntfa.inference.bounds import Bound, Draw, Likelihood, Terms, elbo, importance_weighted
from ntfa.inference.cells import Cells, Frames
from ntfa.inference.normal import Noise
from ntfa.inference.schedules import Schedule

FEW_DATA = 30_000_000
"""Frames times voxels under which a second thread does not pay."""


class Generative(Protocol):
    """What training needs of a model: a joint draw, and which parameters learn at which rate."""

    def draw(self, cells: Cells, noise: Noise) -> Draw:
        """Draw all latent variables from their posteriors."""
        ...

    def variational_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that learn at the fast rate."""
        ...

    def network_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that learn at the slow rate."""
        ...


@dataclass
class History:
    """One row a step, and why the fit stopped."""

    seconds: list[float] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    stopped: str | None = None


class Trainer:
    """A fit in progress.

    Parameters
    ----------
    model : the generative model with its posteriors, an `nn.Module`
    likelihood : how weights are treated
    n_particles : draws a step; one, with weights integrated out, takes KL divergences in closed form
    """

    def __init__(
        self,
        model: Generative,
        likelihood: Likelihood,
        schedule: Schedule,
        noise: Noise,
        frames: Frames,
        n_particles: int = 1,
    ) -> None:
        self.model, self.likelihood, self.schedule, self.noise = model, likelihood, schedule, noise
        self.cells, self.n_data, self.n_particles = frames.cells, frames.n_data, n_particles
        self.history = History()
        fast = [*model.variational_parameters()]
        if isinstance(likelihood, nn.Module):
            fast += likelihood.parameters()
        self.optimizer = torch.optim.Adam(
            [
                {"params": fast, "rate": schedule.variational_rate},
                {"params": [*model.network_parameters()], "rate": schedule.network_rate},
            ],
            fused=True,
        )

    def run(self, after_step: Callable[[Trainer], None] = lambda trainer: None) -> History:
        """Step until the schedule says stop."""
        started = time.perf_counter() - (self.history.seconds[-1] if self.history.seconds else 0.0)
        bounds = [bound.value / self.n_data for bound in self.history.bounds]
        with one_thread_if(self.n_data < FEW_DATA):
            while (pace := self.schedule.pace(bounds)).stop is None:
                bound = self.step(pace.factor)
                if not math.isfinite(bound.value):
                    raise ModelError(f"the bound became {bound.value} at step {len(bounds) + 1}; is the data extreme?")
                bounds.append(bound.value / self.n_data)
                self.history.bounds.append(bound)
                self.history.seconds.append(time.perf_counter() - started)
                after_step(self)
        self.history.stopped = pace.stop
        return self.history

    def step(self, factor: float) -> Bound:
        """Take one gradient step, learning rates scaled by `factor`."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * factor
        self.optimizer.zero_grad(set_to_none=True)
        objective, terms = self.objective()
        (-objective / self.n_data).backward()
        self.optimizer.step()
        return terms.read()

    def objective(self) -> tuple[Tensor, Terms]:
        """Evaluate the bound on fresh draws: (to maximise, record)."""
        draws = [self.model.draw(self.cells, self.noise) for _ in range(self.n_particles)]
        terms = [self.likelihood(draw, self.noise) for draw in draws]
        latents = [[*draw.latents, *own] for draw, (_, own) in zip(draws, terms, strict=True)]
        if self.n_particles == 1 and len(latents[0]) == len(draws[0].latents):
            return elbo(draws[0], terms[0][0])
        return importance_weighted(latents, [log_likelihood for log_likelihood, _ in terms])

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, the history apart."""
        state = {f"adam.{i}.{j}.{name}": tensor for i, j, name, tensor in self._optimizer_state()}
        parts: Sequence[tuple[str, object]] = (("model", self.model), ("likelihood", self.likelihood))
        for prefix, part in parts:
            if isinstance(part, nn.Module):
                state |= {f"{prefix}.{name}": tensor for name, tensor in part.state_dict().items()}
        return state | {"noise": self.noise.generator.get_state()}

    def _optimizer_state(self) -> Iterator[tuple[int, int, str, Tensor]]:
        for i, group in enumerate(self.optimizer.param_groups):
            for j, parameter in enumerate(group["params"]):
                for name, tensor in self.optimizer.state[parameter].items():
                    yield i, j, name, tensor

    def restore(self, tensors: dict[str, Tensor], history: History) -> None:
        """Take up where `tensors` and `history` left off."""
        self.history = history
        self.noise.generator.set_state(tensors["noise"])
        for prefix, part in (("model.", self.model), ("likelihood.", self.likelihood)):
            if isinstance(part, nn.Module):
                part.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        for key, tensor in tensors.items():
            if key.startswith("adam."):
                _, i, j, name = key.split(".")
                parameter = self.optimizer.param_groups[int(i)]["params"][int(j)]
                self.optimizer.state[parameter][name] = tensor.to(parameter.device, copy=True)


@contextmanager
def one_thread_if(small: bool) -> Iterator[None]:
    """Keep PyTorch to one thread for a while.

    Threads that wait for each other at every one of a step's hundreds of small operations gain nothing on a small
    study, and where other processes hold the cores they cost tens of times the step.
    """
    before = torch.get_num_threads()
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
