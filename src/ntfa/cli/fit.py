"""`ntfa fit`: fit a model to a saved study."""

from __future__ import annotations

import argparse
from pathlib import Path

from ntfa.cli.results import fit_to_folder, is_complete
from ntfa.errors import ModelError
from ntfa.models import MODELS
from ntfa.models.base import TopographicModel
from ntfa.report.files import read_quality
from ntfa.report.words import in_words
from ntfa.study import Study


def run(args: argparse.Namespace) -> None:
    """Fit and write."""
    out = Path(args.out)
    if is_complete(out, args):
        print(f"{out} is complete already; nothing to resume.")
        return
    model = model_from(args)
    fit_to_folder(model, Study.open(args.study), args, quality=read_quality(Path(args.study)))
    print(*in_words(model), f"Report: {out / 'report.html'}", sep="\n")


def model_from(args: argparse.Namespace) -> TopographicModel:
    """Make the estimator that the options describe."""
    names = ("embedding_dim", "block", "design")
    special = {name: value for name in names if (value := getattr(args, name)) is not None}
    kind = MODELS[args.model]
    for name in special:
        if name not in kind().get_params():
            raise ModelError(f"--{name.replace('_', '-')} does not apply to --model {args.model}")
    return kind(
        n_factors=args.n_factors,
        inference=args.inference,
        init=args.init,
        schedule=args.schedule,
        max_epochs=args.max_epochs,
        n_particles=args.n_particles,
        n_restarts=args.n_restarts,
        device=args.device,
        random_state=args.seed,
        verbose=0 if args.quiet else 1,
        **special,
    )
