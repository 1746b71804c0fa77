"""The training loop: full-batch Adam on a bound, resumable to the bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from ntfa.fitting.adam import Adam
from ntfa.fitting.divergence import BackOff, Good, Guard
from ntfa.fitting.graphs import Recorder
from ntfa.fitting.relocation import relocate
from ntfa.fitting.schedules import Relocation, Schedule
from ntfa.fitting.sharing import Sharing
from ntfa.inference.bounds import Bound, Draw, Likelihood, Terms, elbo, importance_weighted
from ntfa.inference.cells import Cells
from ntfa.inference.frames import Frames
from ntfa.inference.normal import RandomSource, unconstrained
from ntfa.inference.streaming import is_stored
from ntfa.inference.threads import FEW_DATA, one_thread_if

SMALLEST_RATIO = 0.1
"""How small the noise's variance may become, over what it was, when it is estimated anew."""


class Generative(Protocol):
    """What training needs of a model: a joint draw, its noise, and which parameters learn at which rate."""

    raw_noise_sd: nn.Parameter

    @property
    def noise_sd(self) -> Tensor:
        """Sd of the noise."""
        ...

    def draw(self, cells: Cells, noise: RandomSource) -> Draw:
        """Draw all latent variables from their posteriors."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters, by name."""
        ...

    def variational_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that learn at the fast rate."""
        ...

    def factor_sd_parameters(self) -> Sequence[nn.Parameter]:
        """Those of them that sds of factors' posteriors are made of."""
        ...

    def network_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that learn at the slow rate."""
        ...


@dataclass
class History:
    """One row per step, why the fit stopped, when it diverged or moved factors: what the next steps depend on."""

    seconds: list[float] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    stopped: str | None = None
    back_offs: list[BackOff] = field(default_factory=list)
    good: Good | None = None
    relocations: list[Relocation] = field(default_factory=list)


class Trainer:
    """A fit in progress.

    Parameters
    ----------
    model : the generative model with its posteriors, an `nn.Module`
    likelihood : how weights are treated
    n_particles : draws per step; one, with weights integrated out, takes KL divergences in closed form
    coarse : the frames pooled, for the steps that the schedule takes on those
    sharing : this process's part, where several share the fit
    """

    def __init__(
        self,
        model: Generative,
        likelihood: Likelihood,
        schedule: Schedule,
        noise: RandomSource,
        frames: Frames,
        n_particles: int = 1,
        coarse: Frames | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.model, self.likelihood, self.schedule, self.noise = model, likelihood, schedule, noise
        self.frames, self.coarse, self.n_particles = frames, coarse, n_particles
        self.sharing = sharing or Sharing()
        self.processes = self.sharing.processes
        self.cells, device = frames.cells, frames.energy.device
        self.n_data = int(self.processes.total(torch.tensor(frames.n_data, device=device)))
        self.history = History()
        fast, sds = [*model.variational_parameters()], {id(sd) for sd in model.factor_sd_parameters()}
        others = [*likelihood.parameters()] if isinstance(likelihood, nn.Module) else []
        learning = [
            (schedule.variational_rate, [one for one in fast if id(one) not in sds] + others),
            (schedule.spread_rate, [one for one in fast if id(one) in sds]),
            (schedule.network_rate, [*model.network_parameters()]),
        ]
        on_gpu = device.type == "cuda"
        self.optimizer = Adam(
            [
                {"params": own, "rate": rate, "lr": torch.tensor(rate, device=device) if on_gpu else rate}
                for rate, own in learning
            ]
        )
        self.recorder = None
        if on_gpu and self.processes.size == 1 and not is_stored(frames.blocks):
            self.recorder = Recorder(noise, device)
        named = model.named_parameters()
        self.shared = [parameter for name, parameter in named if not self.sharing.is_own(name)]

    def run(self, after_step: Callable[[Trainer], None] = lambda trainer: None) -> History:
        """Step until the schedule says stop; go back, and use smaller learning rates, if the bound diverges."""
        started = time.perf_counter() - (self.history.seconds[-1] if self.history.seconds else 0.0)
        guard = Guard(self)
        with one_thread_if(self.n_data < FEW_DATA):
            while (pace := self.schedule.pace(guard.bounds(), self.history.relocations)).stop is None:
                self.look_at(self.coarse if pace.coarse and self.coarse is not None else self.frames)
                if pace.relocate:
                    # At the first look factors are still on their way to where they belong in everybody.
                    self.history.relocations.append(relocate(self, one_by_one=bool(self.history.relocations)))
                    continue
                bound = guard.step(pace.factor, pace.refit_noise)
                if bound is None:
                    continue
                self.history.bounds.append(bound)
                self.history.seconds.append(time.perf_counter() - started)
                after_step(self)
        self.history.stopped = pace.stop
        return self.history

    def look_at(self, frames: Frames) -> None:
        """Choose the frames of the steps to come: those pooled, or those as they are."""
        if self.likelihood.frames is not frames:
            self.likelihood.frames = frames
            self._forget_recorded()

    def refit_noise(self) -> None:
        """Estimate the noise of the frames that are looked at, all else being as it is.

        The bound is -N log(sd) - S / (2 sd^2), and what hardly depends on sd; its slope along log(sd), S / sd^2 - N,
        tells S, and so the best sd^2 = S / N.
        """
        raw = self.model.raw_noise_sd
        self._find_gradients(self.noise)
        assert raw.grad is not None
        sd = self.model.noise_sd
        (steepness,) = torch.autograd.grad(sd, raw)
        with torch.no_grad():
            slope = -raw.grad * sd / steepness
            raw.copy_(unconstrained(sd * (1 + slope).clamp(min=SMALLEST_RATIO).sqrt()))

    def step(self, factor: float) -> Bound:
        """Take one gradient step, learning rates scaled by `factor`."""
        for kind in self.optimizer.param_groups:
            rate = kind["rate"] * factor
            kind["lr"] = kind["lr"].fill_(rate) if isinstance(kind["lr"], Tensor) else rate
        parts = self._update(self.noise) if self.recorder is None else self.recorder(self._update)
        return Bound(*self.processes.total(parts).tolist())

    def _update(self, noise: RandomSource) -> Tensor:
        """Move the parameters; return the bound and its parts, as `Bound` has them."""
        terms = self._find_gradients(noise)
        self.optimizer.step()
        return terms.stacked()

    def _find_gradients(self, noise: RandomSource) -> Terms:
        """Leave gradients, of the negative bound per observation, with the parameters."""
        self.optimizer.zero_grad()
        objective, terms = self.objective(noise)
        (-objective / self.n_data).backward()
        self.processes.add_gradients(self.shared)
        return terms

    def _forget_recorded(self) -> None:
        if self.recorder is not None:
            self.recorder.forget()

    def objective(self, noise: RandomSource | None = None) -> tuple[Tensor, Terms]:
        """Evaluate the bound on fresh draws: (to maximise, record)."""
        noise = noise or self.noise
        draws = [self.model.draw(self.cells, noise) for _ in range(self.n_particles)]
        terms = [self.likelihood(draw, noise) for draw in draws]
        latents = [[*draw.latents, *own] for draw, (_, own) in zip(draws, terms, strict=True)]
        if self.n_particles == 1 and len(latents[0]) == len(draws[0].latents):
            return elbo(draws[0], terms[0][0])
        return importance_weighted(latents, [log_likelihood for log_likelihood, _ in terms], self.processes)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, the history apart."""
        state = {f"adam.{i}.{j}.{name}": tensor for i, j, name, tensor in self._optimizer_state()}
        parts: Sequence[tuple[str, object]] = (("model", self.model), ("likelihood", self.likelihood))
        for prefix, part in parts:
            if isinstance(part, nn.Module):
                state |= {f"{prefix}.{name}": tensor for name, tensor in part.state_dict().items()}
        return state | {"noise": self.noise.generator.get_state()}

    def _optimizer_state(self) -> Iterator[tuple[int, int, str, Tensor]]:
        for i, kind in enumerate(self.optimizer.param_groups):
            for j, parameter in enumerate(kind["params"]):
                for name, tensor in self.optimizer.state[parameter].items():
                    yield i, j, name, tensor

    def gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what `tensors` would be if this process had all participants."""
        if self.processes.size == 1:
            return tensors
        variables = self._variables()
        # In an order that all processes agree on: a checkpoint's tensors come in any.
        return {name: self.sharing.gather(variables(name), tensors[name]) for name in sorted(tensors)}

    def own(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Invert `gathered`."""
        variables = self._variables()
        return {name: self.sharing.own(variables(name), tensor) for name, tensor in tensors.items()}

    def _variables(self) -> Callable[[str], str]:
        """Return a function from names in `tensors` to names of the variables that they are part of."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}

        def variable(name: str) -> str:
            part, _, rest = name.partition(".")
            if part == "model":
                return rest
            if part == "adam":
                i, j, _ = rest.split(".")
                return names.get(id(self.optimizer.param_groups[int(i)]["params"][int(j)]), "likelihood")
            return part

        return variable

    def restore(self, tensors: dict[str, Tensor], history: History) -> None:
        """Take up where `tensors` and `history` left off."""
        self.history = history
        self._forget_recorded()
        self.noise.generator.set_state(tensors["noise"])
        for prefix, part in (("model.", self.model), ("likelihood.", self.likelihood)):
            if isinstance(part, nn.Module):
                part.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        for key, tensor in tensors.items():
            if key.startswith("adam."):
                _, i, j, name = key.split(".")
                parameter = self.optimizer.param_groups[int(i)]["params"][int(j)]
                self.optimizer.state[parameter][name] = tensor.to(parameter.device, copy=True)
