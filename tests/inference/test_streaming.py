from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import MODULES, make_frames, naming

from ntfa.errors import StudyError
from ntfa.fitting.pooling import pool
from ntfa.inference.bounds import CollapsedLikelihood, SampledLikelihood
from ntfa.inference.frames import Frames
from ntfa.inference.normal import RandomSource
from ntfa.inference.streaming import StoredBlock, is_stored, loaded

DESIGN = [[3, 4], [4, 2], [2, 5]]


@pytest.fixture
def in_memory() -> Frames:
    return make_frames(DESIGN, 60, dtype=torch.float32)


@pytest.fixture
def on_disk(in_memory, tmp_path) -> Frames:
    blocks = []
    for i, block in enumerate(in_memory.blocks):
        np.save(tmp_path / f"{i}.npy", block.array.numpy())
        blocks.append(StoredBlock.of(np.load(tmp_path / f"{i}.npy", mmap_mode="r"), block.runs))
    coordinates = in_memory.units.millimetres(in_memory.coordinates)
    return Frames.arrange(blocks, in_memory.cells, coordinates, in_memory.units)


def test_blocks_are_read_as_they_were_written_and_hold_no_memory_of_their_own(in_memory, on_disk):
    assert is_stored(on_disk.blocks)
    assert not is_stored(in_memory.blocks)
    assert all(block.array.device.type == "meta" for block in on_disk.blocks)
    pairs = zip(in_memory.blocks, loaded(on_disk.blocks, torch.device("cpu")), strict=True)
    for ours, theirs in pairs:
        assert torch.equal(theirs.array, ours.array[ours.rows])
    torch.testing.assert_close(on_disk.energy, in_memory.energy, rtol=1e-14, atol=0)


def sampled(frames: Frames) -> SampledLikelihood:
    weights = np.random.default_rng(1).normal(size=(len(frames.energy), 2))
    return SampledLikelihood(frames, torch.from_numpy(weights), sd=0.1)


@pytest.mark.parametrize("likelihood", [CollapsedLikelihood, sampled], ids=["collapsed", "sampled"])
@pytest.mark.parametrize("kind", ["ntfa", "htfa", "tfa"])
def test_likelihood_and_gradients_are_those_of_frames_in_memory(kind, likelihood, in_memory, on_disk):
    results = []
    for frames in (in_memory, on_disk):
        torch.manual_seed(0)
        module, treated = MODULES[kind]().double(), likelihood(frames)
        draw = module.draw(frames.cells, RandomSource(0))
        value, latents = treated(draw, RandomSource(0))
        (value + sum(latent.log_ratio() for latent in latents)).backward()
        results.append((float(value.detach()), [p.grad for p in (*module.parameters(), *treated.parameters())]))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-8)
    assert results[0][1][0].abs().max() > 0.1
    for ours, theirs in zip(results[0][1], results[1][1], strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


def test_gradients_that_would_be_lost_are_refused(on_disk):
    centers = torch.randn(3, 2, 3).double().requires_grad_()
    with pytest.raises(RuntimeError):
        on_disk.project(centers, torch.zeros(3, 2).double())


def test_projection_and_pooling_are_those_of_frames_in_memory(in_memory, on_disk):
    centers, log_widths = torch.randn(3, 2, 3).double(), torch.zeros(3, 2).double()
    ours, theirs = (frames.project(centers, log_widths) for frames in (in_memory, on_disk))
    torch.testing.assert_close(theirs.frames, ours.frames, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(theirs.gram, ours.gram, rtol=1e-5, atol=1e-5)
    for fine, coarse in zip(pool(in_memory, 1.0).blocks, pool(on_disk, 1.0).blocks, strict=True):
        assert torch.equal(fine.array, coarse.array)


def test_a_block_on_its_own_has_its_cells_and_its_frames(in_memory):
    for b, (places, alone) in enumerate(in_memory.by_block()):
        assert in_memory.cells.block[places].unique().tolist() == [b]
        torch.testing.assert_close(alone.cell_energy, in_memory.cell_energy[places])
        assert alone.cells.stimulus.tolist() == in_memory.cells.stimulus[places].tolist()
        assert alone.cells.owner.tolist() == [in_memory.cells.owner[b].item()]


def test_a_file_that_was_cut_short_is_named(on_disk):
    path = on_disk.blocks[1].path
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(StudyError, match=naming(path)):
        list(loaded(on_disk.blocks, torch.device("cpu")))


def test_two_rooms_are_used_in_turn(on_disk):
    reader = loaded(on_disk.blocks, torch.device("cpu"))
    first = next(reader)
    second = next(reader)
    assert first.array.data_ptr() != second.array.data_ptr()
    third = next(reader)
    assert third.array.data_ptr() == first.array.data_ptr()


def test_a_study_of_one_block_needs_one_room(on_disk):
    alone = replace(on_disk.blocks[0])
    assert len(list(loaded([alone], torch.device("cpu")))) == 1
