"""Where a fit starts: initial factors, and what least squares says of weights and noise given them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ntfa.inference.frames import Frames, Projection
from ntfa.inference.processes import ALONE, Processes
from ntfa.inference.pursuit import MOST_NODES, Candidates, Lattice, Pursuit, spacing_of
from ntfa.inference.threads import one_thread_if

MOST_IMAGES = 32
HALF_SEEN = 0.5
"""Share of a node's voxels from which on it counts as seen."""
ROUNDS_OF_FILLING = 8


@dataclass(frozen=True)
class Start:
    """Initial values in standardised units.

    centers [K, 3], log_widths [K], weights [n_frames, K], cell_weights [C, K], weights_sd [K], noise_sd;
    from_data says whether the factors were found in the data, so that the weights mean something. gram [K, K] is F F^T,
    and weights_covariance [K, K] that of the weights of frames around their cell's mean, as they were estimated.
    """

    centers: Tensor
    log_widths: Tensor
    weights: Tensor
    cell_weights: Tensor
    weights_sd: Tensor
    noise_sd: float
    from_data: bool
    gram: Tensor
    weights_covariance: Tensor


def find_start(
    frames: Frames,
    n_factors: int,
    method: str,
    seed: int,
    restart: int = 0,
    processes: Processes = ALONE,
    factors: tuple[Tensor, Tensor] | None = None,
) -> Start:
    """Find initial factors by a method, and complete them by ridge regression of the frames on them.

    Every restart starts elsewhere: with other initial clusters, or from images weighted at random. The processes of a
    fit start at the same factors, with weights of their own frames. `factors` that are known already, centres [K, 3]
    and log-widths [K], are taken as they are.
    """
    # Of two blobs that explain almost the same, the last bits decide, and these owe to the number of threads.
    with one_thread_if(True):
        centers, log_widths = factors or STARTS[method](frames, n_factors, seed, restart, processes)
    # Block by block, though all have the same factors: ridge regression magnifies what a large product's last bits
    # owe to the number of threads.
    n_blocks = len(frames.blocks)
    projection = frames.project(centers.expand(n_blocks, -1, -1), log_widths.expand(n_blocks, -1))
    projected, cells = projection.frames, frames.cells
    gram = projection.gram[0] if frames.unseen is None else frames.whole_gram(centers, log_widths)
    ridge = 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    if frames.unseen is None:
        weights = torch.linalg.solve(gram + ridge, projected.T).T
        explained = weights @ gram
    else:
        weights, explained = _weights_where_seen(projection, gram, ridge, processes)
    cell_weights = cells.weighted_total(weights) / cells.mass.unsqueeze(-1)
    misfit = frames.cell_energy.sum() - 2 * (weights * projected).sum() + (explained * weights).sum()
    n_frames, n_data = processes.total(misfit.new_tensor([len(frames.energy), frames.n_data]))
    noise_variance = (processes.total(misfit) / n_data).clamp(min=1e-6)
    deviation = weights - cells.expected(cell_weights)
    covariance = processes.total(deviation.mT @ deviation) / n_frames
    within = covariance.diagonal()
    sampling = noise_variance * torch.linalg.inv(gram + ridge).diagonal()
    weights_sd = (within - sampling).clamp(min=1e-4).sqrt()
    noise_sd = float(noise_variance.sqrt())
    weights = weights if cells.root is None else weights / cells.root
    from_data = method == "pursuit" or factors is not None
    return Start(centers, log_widths, weights, cell_weights, weights_sd, noise_sd, from_data, gram, covariance)


def _weights_where_seen(
    projection: Projection, gram: Tensor, ridge: Tensor, processes: Processes
) -> tuple[Tensor, Tensor]:
    """Ridge regression on factors that not everybody sees whole: weights, and these times each frame's Gram matrix.

    gram : of all voxels

    Weights are shrunk to the mean of those who see the factor, each by how much of it they see: of the same stimulus,
    or of anything.
    """
    cells, sizes = projection.cells, projection.gram.diagonal(dim1=-2, dim2=-1)
    solved = torch.linalg.inv(projection.gram + ridge)
    cell_projected = cells.weighted_total(projection.frames) / cells.mass.unsqueeze(-1)
    found = cells.times_block(cell_projected, solved)
    share = sizes / gram.diagonal().clamp(min=1e-300)
    count = share.square()[cells.block] * cells.mass.unsqueeze(-1)
    n_stimuli = int(processes.gather(cells.stimulus.amax().unsqueeze(0)).amax()) + 1
    place = cells.stimulus.clamp(min=0)
    totals = torch.stack([count * found, count]).new_zeros(2, max(1, n_stimuli), found.shape[1])
    totals.index_add_(1, place, torch.stack([count * found, count]))
    total, known = processes.total(totals)
    overall = total.sum(0) / known.sum(0).clamp(min=1e-12)
    small = 0.1 * cells.mass.mean()
    mean = ((total + small * overall) / (known + small))[place]
    residual = projection.frames - cells.expected(cells.times_block(mean, projection.gram))
    deviation = torch.empty_like(residual)
    block = cells.block[cells.of_frame]
    for b, own in enumerate(solved):
        rows = block == b
        deviation[rows] = residual[rows] @ own
    weights = cells.expected(mean) + deviation
    explained = torch.empty_like(weights)
    for b, own in enumerate(projection.gram):
        rows = block == b
        explained[rows] = weights[rows] @ own
    return weights, explained


def kmeans_factors(
    frames: Frames, n_factors: int, seed: int, restart: int, processes: Processes
) -> tuple[Tensor, Tensor]:
    """K-means on voxel positions, the paper's start: centres of the clusters, widths from their spread."""
    from sklearn.cluster import KMeans

    positions = frames.coordinates.cpu().numpy()
    voxels = np.ones(len(positions)) if frames.pooled is None else frames.pooled.cpu().numpy()
    clusters = KMeans(n_factors, n_init=1, random_state=(seed + restart) % 2**32).fit(positions, sample_weight=voxels)
    centers = clusters.cluster_centers_
    squared = voxels * ((positions - centers[clusters.labels_]) ** 2).sum(1)
    sizes = np.bincount(clusters.labels_, voxels, minlength=n_factors)
    spread = np.bincount(clusters.labels_, squared, minlength=n_factors) / np.maximum(sizes, 1)
    widths = np.maximum(spread, (spacing_of(positions) / 2) ** 2)
    return _like(frames, centers), _like(frames, np.log(widths))


def pursuit_factors(
    frames: Frames, n_factors: int, seed: int, restart: int, processes: Processes
) -> tuple[Tensor, Tensor]:
    """Matching pursuit on trial-mean images: take the blob that explains most, deflate, repeat."""
    lattice = Lattice.around(frames.coordinates, MOST_NODES, frames.pooled)
    images = _principal_images(frames, lattice, np.random.default_rng((seed, restart)) if restart else None, processes)
    pursuit = Pursuit(Candidates.on(lattice, frames.reach), images)
    found = [pursuit.take() for _ in range(n_factors)]
    centers = torch.stack([blob.center for blob in found])
    return _like(frames, centers), _like(frames, torch.tensor([blob.log_width for blob in found]))


STARTS = {"pursuit": pursuit_factors, "kmeans": kmeans_factors}


def _principal_images(
    frames: Frames, lattice: Lattice, rng: np.random.Generator | None, processes: Processes
) -> Tensor:
    """Pool cell-mean images into the lattice and keep their principal components, [X, Y, Z, R].

    Sums of squares over images are all that pursuit looks at, and a rotation of the images keeps them.
    """
    flat = processes.gather(torch.stack([lattice.pool(image.unsqueeze(0)).flatten() for image in _cell_images(frames)]))
    share = _seen_share(frames, lattice)
    if float(processes.total(frames.energy.new_tensor(float(share is not None)))):
        whole = torch.ones(len(frames.blocks), flat.shape[1]).to(flat)
        flat = _filled_in(flat, processes.gather((whole if share is None else share)[frames.cells.block]))
    if rng is not None:
        flat = flat * torch.from_numpy(rng.exponential(size=(len(flat), 1))).to(flat)
    rotation = torch.linalg.eigh((flat @ flat.T).double()).eigenvectors[:, -MOST_IMAGES:].T.to(flat.dtype)
    return (flat.T @ rotation.T).unflatten(0, lattice.count.shape)


def _seen_share(frames: Frames, lattice: Lattice) -> Tensor | None:
    """Share of each node's voxels that each block has, [B, nodes]; None if all have all."""
    if frames.unseen is None:
        return None
    shares = torch.ones(len(frames.unseen.columns), lattice.count.numel()).to(lattice.count)
    for share, columns, terms in zip(shares, frames.unseen.columns, frames.unseen.terms, strict=True):
        lacked = terms[5] if frames.weights is None else terms[5] / frames.weights[columns]
        lacked = (lacked * lattice.voxels[columns]).to(share)
        share.index_add_(0, lattice.node[columns], -lacked / lattice.count.flatten()[lattice.node[columns]])
    return shares[frames.unseen.pattern]


def _filled_in(images: Tensor, share: Tensor) -> Tensor:
    """Fill in nodes [C, nodes] that cells have little of, by what leading principal components say of them.

    Images cut off at the border of somebody's field of view would else be taken for smaller blobs, and half as many
    people would make a blob half as interesting.
    """
    seen = share >= HALF_SEEN
    images = torch.where(seen, images / share.clamp(min=HALF_SEEN), 0.0)
    n_components = min(MOST_IMAGES, max(1, len(images) // 2))
    filled = images
    for _ in range(ROUNDS_OF_FILLING):
        axes = torch.linalg.eigh((filled @ filled.T).double()).eigenvectors[:, -n_components:].to(filled.dtype)
        filled = torch.where(seen, images, axes @ (axes.T @ filled))
    return filled


def _cell_images(frames: Frames) -> Iterator[Tensor]:
    """Mean image of every cell, scaled by the square root of what its frames count, in standardised units."""
    starts = np.cumsum([0] + [block.n_frames for block in frames.blocks])
    rows_of_cells = (rows for same_length in frames.cells.frames for rows in same_length)
    trust = frames.cells.trust
    for rows, block in zip(rows_of_cells, frames.cells.block.tolist(), strict=True):
        source = frames.blocks[block]
        own = source.array.index_select(0, source.rows[rows - int(starts[block])])
        if trust is None:
            image = own.sum(0) / len(rows) ** 0.5
        else:
            image = trust[rows].to(own) @ own / float(trust[rows].sum()) ** 0.5
        yield (image / frames.units.intensity).to(torch.float32)


def _like(frames: Frames, values: Tensor | np.ndarray) -> Tensor:
    return torch.as_tensor(values).to(frames.energy)
