"""Do intervals of contrasts hold the true difference? Simulated studies in which it is known.

    python benchmarks/contrasts.py --studies 30 --n-jobs 15 --out contrasts.jsonl     # about 15 s for each of 7 x 30
    python benchmarks/contrasts.py --read contrasts.jsonl                             # table of an earlier run

Every study is fitted once and contrasted in several ways: one person's responses to two stimuli; two people's mean
responses; everybody's responses to two stimuli, about these people and about the population; two halves of the people,
likewise. Counted is the share of voxels whose 95% interval holds the truth (0.95 is right), the power (share of voxels
significant at an FDR of 5%), and the share of those significant that have the wrong sign or no true difference. Another
table has shares of stimulus, person and their interaction beside the true ones.
Needs numpy, scipy, pandas and torch only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import bare  # noqa: F401
import numpy as np
import pandas as pd
import torch
from calibration import N_FACTORS, N_FRAMES, N_RUNS, Scenario, _ball, _scattered, _with_misfit, run_or_read, show
from calibration import make_study as make_network_study
from scipy.special import stdtrit

from ntfa import NTFA, Study, simulate
from ntfa.analyses.interaction import interaction
from ntfa.analyses.recorded import components
from ntfa.simulation.design import make_design
from ntfa.simulation.simulator import Simulator
from ntfa.simulation.truth import Truth, labelled

N_FEATURES = 3
PLAIN = Scenario()


@dataclass(frozen=True)
class Kind:
    """What studies are like, and the response model that is fitted.

    truth : "network" and "loadings" as modelled, or the name of a study that `simulate` makes one like
    groups : how far, in sds of people, two halves of the people lie apart
    """

    response: str
    truth: str
    scenario: Scenario = PLAIN
    groups: float = 0.0
    n_factors: int = N_FACTORS


LOADINGS = Scenario(n_participants=16)
KINDS = {
    "networks": Kind("network", "network"),
    "networks, weak signal": Kind("network", "network", Scenario(signal=0.3)),
    "networks, smooth noise": Kind("network", "network", Scenario(smooth=0.5)),
    "loadings": Kind("loadings", "loadings", LOADINGS),
    "loadings, weak signal": Kind("loadings", "loadings", replace(LOADINGS, signal=0.3)),
    "loadings, smooth noise": Kind("loadings", "loadings", replace(LOADINGS, smooth=0.5)),
    "loadings, two groups": Kind("loadings", "loadings", LOADINGS, groups=1.0),
    "loadings, like Woo": Kind("loadings", "woo", LOADINGS, n_factors=20),
}


@dataclass(frozen=True)
class Simulated:
    """A study, its true images [P, S, V], and the population's images of both halves of the people [2, S, V]."""

    study: Study
    images: np.ndarray
    population: np.ndarray


def make_study(kind: Kind, seed: int) -> Simulated:
    """Simulate a study of some kind."""
    if kind.truth == "network":
        study, truth = make_network_study(kind.scenario, seed)
        images = true_images(truth)
        # People come in identical pairs here, so that they are no sample of a population.
        return Simulated(study, images, np.full((2, *images.shape[1:]), np.nan))
    if kind.truth == "loadings":
        return make_loadings_study(kind, seed)
    sizes = {"n_participants": kind.scenario.n_participants, "n_runs": 6, "coordinates": _ball()}
    made = simulate(kind.truth, random_state=seed, **sizes)
    group = made.truth.stimulus_features.sort_index().to_numpy() @ made.truth.group_images
    return Simulated(made.study, true_images(made.truth), np.stack([group, group]))


def true_images(truth: Truth) -> np.ndarray:
    """Mean images [P, S, V], in the order of sorted labels as a study has them."""
    return np.stack(
        [[truth.mean_image(who, what) for what in sorted(truth.stimuli)] for who in sorted(truth.participants)]
    )


def make_loadings_study(kind: Kind, seed: int) -> Simulated:
    """Factors in the same places for all, responses linear in features of stimuli with loadings of everybody's own."""
    scenario, rng = kind.scenario, np.random.default_rng([seed, 13])
    n, k = scenario.n_participants, N_FACTORS
    features = np.column_stack([np.ones(scenario.n_stimuli), rng.normal(size=(scenario.n_stimuli, N_FEATURES))])
    scale = np.array([0.6, 0.5, 0.4, 0.3])[:, None]
    group, own = rng.normal(size=(N_FEATURES + 1, k)) * scale, 0.6 * rng.normal(size=(n, N_FEATURES + 1, k)) * scale
    apart = kind.groups * 0.6 * rng.normal(size=(N_FEATURES + 1, k)) * scale
    half = np.arange(n) < n // 2
    own[half] += apart
    weights = scenario.signal * (features @ (group + own))
    centers, log_widths = _scattered(rng, k), np.log(rng.uniform(12, 18, k) ** 2)
    participants = [f"sub-{i + 1:02d}" for i in range(n)]
    stimuli = [f"stim-{i + 1:02d}" for i in range(scenario.n_stimuli)]
    groups = pd.Series(np.where(half, "a", "b"), index=participants)
    categories = pd.Series("all", index=stimuli)
    truth = Truth(
        coordinates=_ball(),
        participant_groups=groups,
        stimulus_categories=categories,
        participant_embeddings=labelled(participants, list(own[:, 0, :2]), "participant"),
        stimulus_embeddings=labelled(stimuli, list(features[:, 1:]), "stimulus"),
        centers=centers,
        log_widths=log_widths,
        participant_centers=np.repeat(centers[None], n, axis=0),
        participant_log_widths=np.repeat(log_widths[None], n, axis=0),
        weights_mean=pd.DataFrame(
            weights.reshape(-1, k), index=pd.MultiIndex.from_product([participants, stimuli])
        ).rename_axis(["participant", "stimulus"]),
        weights_sd=np.full(k, 0.3),
        noise=1.0,
    )
    orders = {who: [list(rng.permutation(stimuli)) for _ in range(N_RUNS)] for who in participants}
    design = make_design(orders, N_FRAMES, lambda n_blocks: 0, groups, categories)
    study = Simulator("synthetic", seed, truth, design.trials, design.run_frames).run().study
    study = _with_misfit(study, truth, scenario, rng)
    shapes = truth.factors(participants[0])
    population = [scenario.signal * (features @ (group + more)) @ shapes for more in (apart, 0 * apart)]
    return Simulated(study, true_images(truth), np.stack(population))


def examine(name: str, seed: int) -> dict[str, Any]:
    """Simulate, fit, contrast and count."""
    torch.set_num_threads(1)
    kind = KINDS[name]
    made = make_study(kind, seed)
    model = NTFA(kind.n_factors, response=kind.response, device="cpu", random_state=seed).fit(made.study)
    return {"kind": name, "seed": seed, "found": counts(model, made), "shares": shares(model, made)}


def shares(model: NTFA, made: Simulated) -> dict[str, Any]:
    """Shares of stimulus, person and both: true ones, the model's and those of recorded images, with their ends."""
    found, true = interaction(model, made.study), components(made.images, made.images)
    ends = ["share", "ci_low", "ci_high"]
    tables = {"model": found.shares, "recorded": found.recorded}
    estimates = {name: own[ends].to_numpy().tolist() for name, own in tables.items() if own is not None}
    return {"true": (true / true.sum()).tolist(), **estimates}


def counts(model: NTFA, made: Simulated) -> dict[str, list[float]]:
    """(coverage, ratio of the error's root mean square to the sd's, share significant, false ones of these)."""
    people, stimuli, images = made.study.participants, made.study.stimuli, made.images
    one, other = stimuli[0], stimuli[-1]
    half = len(people) // 2
    sets: dict[str, Any] = {
        "one person": ([(people[0], one)], [(people[0], other)], images[0, 0] - images[0, -1]),
        "two people": (cross(people[:1], stimuli), cross(people[-1:], stimuli), (images[0] - images[-1]).mean(0)),
        "stimuli": (cross(people, [one]), cross(people, [other]), (images[:, 0] - images[:, -1]).mean(0)),
        "groups": (
            cross(people[:half], stimuli),
            cross(people[half:], stimuli),
            images[:half].mean((0, 1)) - images[half:].mean((0, 1)),
        ),
    }
    found = {}
    for name, (a, b, truth) in sets.items():
        found[name] = judged(model.contrast(a, b), truth)
    if np.isfinite(made.population).all():
        middle = made.population.mean(0)
        truths = {"stimuli": middle[0] - middle[-1], "groups": (made.population[0] - made.population[1]).mean(0)}
        for name, truth in truths.items():
            found[f"{name}, population"] = judged(model.contrast(*sets[name][:2], population=True), truth)
    return found


def cross(people: list[str], stimuli: list[str]) -> list[tuple[str, str]]:
    """All pairs of these."""
    return [(who, what) for who in people for what in stimuli]


def judged(contrast: Any, truth: np.ndarray) -> list[float]:
    """Compare a contrast with the truth."""
    error, freedom = contrast.difference - truth, contrast.voxels.freedom
    reach = 1.96 if freedom is None else stdtrit(freedom, 0.975)
    wrong = np.sign(contrast.difference) * truth <= 1e-6
    return [
        float((np.abs(error) <= reach * contrast.sd).mean()),
        float(np.sqrt((error**2).mean() / (contrast.sd**2).mean())),
        float(contrast.significant.mean()),
        float((contrast.significant & wrong).sum() / max(contrast.significant.sum(), 1)),
    ]


def table(found: list[dict[str, Any]]) -> pd.DataFrame:
    """One row per kind and contrast; coverage with its standard error over studies."""
    rows = []
    for kind in dict.fromkeys(one["kind"] for one in found):
        own = [one["found"] for one in found if one["kind"] == kind]
        for name in own[0]:
            values = np.array([one[name] for one in own])
            error = values[:, 0].std(ddof=1) / len(own) ** 0.5 if len(own) > 1 else np.nan
            row = {
                "studies": kind,
                "n": len(own),
                "contrast": name,
                "coverage": f"{values[:, 0].mean():.3f} ({error:.3f})",
            }
            row |= {"error / sd": f"{np.sqrt((values[:, 1] ** 2).mean()):.2f}"}
            row |= {"significant": f"{values[:, 2].mean():.2f}", "false of these": f"{values[:, 3].mean():.3f}"}
            rows.append(row)
    return pd.DataFrame(rows)


def share_table(found: list[dict[str, Any]]) -> pd.DataFrame:
    """Share of the interaction by estimate: mean, mean error, and how often intervals of all shares hold the truth."""
    rows = []
    for kind in dict.fromkeys(one["kind"] for one in found):
        own = [one["shares"] for one in found if one["kind"] == kind]
        true = np.array([one["true"] for one in own])
        row = {"studies": kind, "n": len(own), "true interaction": f"{true[:, 2].mean():.3f}"}
        for name in ("model", "recorded"):
            if all(name in one for one in own):
                values = np.array([one[name] for one in own])
                held = (values[..., 1] <= true) & (true <= values[..., 2])
                error = np.abs(values[:, 2, 0] - true[:, 2]).mean()
                row[name] = f"{values[:, 2, 0].mean():.3f}, off by {error:.3f}, covered {held.mean():.2f}"
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def main() -> None:
    """Run, or read an earlier run, and print the tables."""
    found = run_or_read(__doc__ or "", list(KINDS), examine)
    show(table(found))
    show(share_table(found))


if __name__ == "__main__":
    main()
