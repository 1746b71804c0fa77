import math
from dataclasses import dataclass

import pytest
import torch
from helpers import MODULES, make_frames, radial_basis
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ntfa.fitting.pooling import pool
from ntfa.fitting.schedules import CoarseToFine, OneCycle, PaperSchedule
from ntfa.fitting.training import History, Trainer
from ntfa.inference import projection
from ntfa.inference.bounds import CollapsedLikelihood, Draw, SampledLikelihood, elbo
from ntfa.inference.frames import Frames
from ntfa.inference.normal import RandomSource, unconstrained
from ntfa.inference.start import find_start
from ntfa.models.module import TopographicModule

DESIGN = [[3, 4], [4, 2], [2, 5]]
N_FRAMES = sum(map(sum, DESIGN))


def make_trainer(
    kind: str = "ntfa",
    inference: str = "collapsed",
    n_particles: int = 1,
    n_voxels: int = 60,
    seed: int = 0,
    max_epochs: int = 12,
    frames: Frames | None = None,
    coarse: bool = False,
) -> Trainer:
    frames = frames or make_frames(DESIGN, n_voxels, dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = MODULES[kind]().double()
    start = find_start(frames, 2, "kmeans", seed)
    module.start_at(start, frames.cells)
    collapsed = inference == "collapsed"
    likelihood = CollapsedLikelihood(frames) if collapsed else SampledLikelihood(frames, start.weights, sd=0.1)
    schedule = CoarseToFine(max_epochs) if coarse else OneCycle(max_epochs)
    pooled = pool(frames, 1.0) if coarse else None
    return Trainer(module, likelihood, schedule, RandomSource(seed), frames, n_particles, pooled)


@dataclass
class Snapshot:
    """Keeps what `Trainer.tensors` says at one step, as a checkpoint would."""

    step: int
    tensors: dict[str, Tensor] | None = None
    history: History | None = None

    def __call__(self, trainer: Trainer) -> None:
        if len(trainer.history.bounds) == self.step:
            self.tensors = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
            self.history = History([*trainer.history.seconds], [*trainer.history.bounds])


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(("inference", "n_particles"), [("collapsed", 1), ("collapsed", 2), ("mean-field", 2)])
def test_a_restored_run_goes_on_to_the_bit(kind, inference, n_particles):
    whole, snapshot = make_trainer(kind, inference, n_particles), Snapshot(step=5)
    whole.run(snapshot)
    resumed = make_trainer(kind, inference, n_particles, seed=1)
    assert not torch.equal(resumed.tensors()["noise"], whole.tensors()["noise"])
    resumed.restore(snapshot.tensors, snapshot.history)
    resumed.run()
    assert len(whole.history.bounds) == len(resumed.history.bounds) == 12
    assert whole.history.bounds == resumed.history.bounds
    assert whole.history.stopped == resumed.history.stopped == "max_epochs"
    ours, theirs = whole.tensors(), resumed.tensors()
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("likelihood.") for name in ours) == (inference == "mean-field")
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("step", [5, 6, 7])
def test_a_run_that_is_restored_where_pooled_frames_end_goes_on_to_the_bit(step: int) -> None:
    whole, snapshot = make_trainer(coarse=True), Snapshot(step)
    assert whole.coarse is not None
    assert len(whole.coarse.coordinates) < len(whole.frames.coordinates)
    whole.run(snapshot)
    assert whole.schedule.pace([0.0] * 6).refit_noise
    resumed = make_trainer(coarse=True, seed=1)
    resumed.restore(snapshot.tensors, snapshot.history)
    resumed.run()
    assert whole.history.bounds == resumed.history.bounds
    ours, theirs = whole.tensors(), resumed.tensors()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_restored_run_does_not_change_the_snapshot():
    snapshot = Snapshot(step=5)
    make_trainer().run(snapshot)
    before = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    resumed = make_trainer(seed=1)
    resumed.restore(snapshot.tensors, snapshot.history)
    resumed.run()
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot.tensors.items())


def test_restoring_a_finished_run_takes_no_more_steps():
    whole = make_trainer()
    history = whole.run()
    resumed = make_trainer(seed=1)
    resumed.restore(whole.tensors(), History([*history.seconds], [*history.bounds], history.stopped))
    resumed.run()
    assert resumed.history.bounds == history.bounds


def test_same_seed_same_run():
    first, second, other = (make_trainer(seed=seed).run().bounds for seed in (0, 0, 1))
    assert first == second
    assert first != other


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("inference", ["collapsed", "mean-field"])
def test_training_raises_the_bound_and_moves_every_parameter(kind, inference):
    trainer = make_trainer(kind, inference, max_epochs=60)
    parameters = dict(trainer.model.named_parameters()) | dict(trainer.likelihood.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    bounds = [bound.value for bound in trainer.run().bounds]
    assert sum(bounds[-10:]) > sum(bounds[:10])
    assert all(math.isfinite(bound) for bound in bounds)
    for name, parameter in parameters.items():
        assert not torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("kind", MODULES)
def test_every_parameter_learns_once_networks_slowly_and_sds_fast(kind):
    trainer = make_trainer(kind, "mean-field")
    schedule = trainer.schedule
    trainer.step(0.5)
    module: TopographicModule = trainer.model
    fast, spread, slow = trainer.optimizer.param_groups
    rates = (schedule.variational_rate, schedule.spread_rate, schedule.network_rate)
    assert tuple(group["lr"] for group in (fast, spread, slow)) == tuple(0.5 * rate for rate in rates)
    assert {id(p) for p in spread["params"]} == {id(module.centers.raw_sd), id(module.log_widths.raw_sd)}
    networks = [p for part in module.modules() if isinstance(part, nn.Linear | nn.PReLU) for p in part.parameters()]
    assert {id(p) for p in slow["params"]} == {id(p) for p in networks}
    assert bool(networks) == (kind == "ntfa")
    everything = [*module.parameters(), *trainer.likelihood.parameters()]
    assert sorted(id(p) for group in (fast, spread, slow) for p in group["params"]) == sorted(id(p) for p in everything)


def test_a_step_of_factor_zero_changes_nothing():
    trainer = make_trainer()
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.step(0.0)
    assert all(torch.equal(p, q) for p, q in zip(trainer.model.parameters(), before, strict=True))


def test_objective_is_the_elbo_for_one_particle_and_the_log_mean_weight_for_more():
    trainer = make_trainer(n_particles=1)
    value, terms = trainer.objective()
    bound = terms.read()
    noise = RandomSource(0)
    draw = trainer.model.draw(trainer.cells, noise)
    expected, terms = elbo(draw, trainer.likelihood(draw, noise)[0])
    parts = terms.read()
    torch.testing.assert_close(value, expected)
    assert bound == parts

    trainer = make_trainer(n_particles=3)
    bound = trainer.objective()[1].read()
    noise = RandomSource(0)
    draws = [trainer.model.draw(trainer.cells, noise) for _ in range(3)]
    weights = torch.stack(
        [trainer.likelihood(d, noise)[0] + sum(latent.log_ratio() for latent in d.latents) for d in draws]
    )
    assert bound.value == pytest.approx(float((torch.logsumexp(weights, 0) - math.log(3)).detach()), rel=1e-12)


def test_gradient_is_that_of_the_bound_a_datum():
    trainer = make_trainer()
    assert trainer.n_data == N_FRAMES * 60
    trainer.step(0.0)
    twin = make_trainer()
    value, _ = twin.objective()
    expected = torch.autograd.grad(value, [*twin.model.parameters()])
    for parameter, gradient in zip(trainer.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, -gradient / trainer.n_data)


def test_run_stops_where_the_schedule_says():
    trainer = make_trainer(max_epochs=3)
    seen: list[int] = []
    history = trainer.run(lambda trainer: seen.append(len(trainer.history.bounds)))
    assert seen == [1, 2, 3]
    assert history.stopped == "max_epochs"
    assert len(history.seconds) == 3
    assert history.seconds == sorted(history.seconds)
    trainer.schedule = PaperSchedule(5)
    assert len(trainer.run().bounds) == 5


# Memory -------------------------------------------------------------------------------------------------------------


class NewTensors(TorchDispatchMode):
    """Notes the shape of every tensor that takes memory of its own, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {x.untyped_storage().data_ptr() for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.shapes.append(tensor.shape)
        return result


class NaiveLikelihood(nn.Module):
    """The way not to do it: factors and residual images in full."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self.frames = frames

    def forward(self, draw: Draw, noise: RandomSource) -> tuple[Tensor, tuple[()]]:
        factors = radial_basis(self.frames.coordinates, draw.centers, draw.log_widths)
        stacked = torch.cat([block.array[block.rows] for block in self.frames.blocks]).double()
        block = self.frames.cells.block[self.frames.cells.of_frame]
        mean = torch.einsum("nk,nkv->nv", draw.weights.mean[self.frames.cells.of_frame], factors[block])
        return torch.distributions.Normal(mean, draw.noise_sd).log_prob(stacked).sum(), ()


@pytest.fixture
def many_chunks(monkeypatch) -> None:
    monkeypatch.setattr(projection, "CHUNK_BYTES", {"cpu": 1})


N_VOXELS = 2100


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(("inference", "n_particles"), [("collapsed", 1), ("collapsed", 2), ("mean-field", 1)])
def test_no_step_forms_an_image_of_a_frame_or_a_factor(kind, inference, n_particles, many_chunks):
    trainer = make_trainer(kind, inference, n_particles, n_voxels=N_VOXELS)
    trainer.step(1.0)
    with NewTensors() as new:
        trainer.step(1.0)
    assert max(shape.numel() for shape in new.shapes) < N_FRAMES * N_VOXELS / 4
    chunk = max(max(shape, default=0) for shape in new.shapes)
    assert 100 < chunk < N_VOXELS / 4, "voxels must appear, but only a chunk of them at a time"


def test_recording_sees_images_where_there_are_some(many_chunks):
    trainer = make_trainer(n_voxels=N_VOXELS)
    trainer.likelihood = NaiveLikelihood(trainer.likelihood.frames)
    with NewTensors() as forward:
        objective, _ = trainer.objective()
    with NewTensors() as backward:
        objective.backward()
    for new in (forward, backward):
        assert max(shape.numel() for shape in new.shapes) >= N_FRAMES * N_VOXELS


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_the_noise_is_estimated_anew_where_the_bound_is_highest(kind: str, factor: float) -> None:
    trainer = make_trainer(kind)
    trainer.run()
    raw = trainer.model.raw_noise_sd
    others = {name: tensor.clone() for name, tensor in trainer.tensors().items() if "noise" not in name}

    def bound(sd: Tensor) -> float:
        with torch.no_grad():
            raw.copy_(unconstrained(sd))
            return float(trainer.objective(RandomSource(5))[0])

    sds = trainer.model.noise_sd.detach() * torch.linspace(0.8, 1.25, 91, dtype=torch.float64)
    best = max(sds, key=bound)
    with torch.no_grad():
        raw.copy_(unconstrained(factor * best))
    for _ in range(3):
        trainer.refit_noise()
    assert float(trainer.model.noise_sd) == pytest.approx(float(best), rel=0.02)
    tensors = trainer.tensors()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in others.items())


def test_a_fit_goes_back_if_the_noise_cannot_be_estimated_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(coarse=True)
    refit, failed = trainer.refit_noise, []

    def fails_once() -> None:
        if not failed:
            failed.append(len(trainer.history.bounds))
            raise torch.linalg.LinAlgError("no inverse")
        refit()

    monkeypatch.setattr(trainer, "refit_noise", fails_once)
    history = trainer.run()
    assert failed == [6]
    assert len(history.back_offs) == 1
    assert len(history.bounds) == 12
