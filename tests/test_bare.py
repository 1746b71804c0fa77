"""What can be imported, and fitted, where scikit-learn or safetensors are not installed: benchmarks run there."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

CORE = """
import pkgutil, sys
from importlib import import_module
import ntfa.errors, ntfa.cli
for room in ("ntfa.inference", "ntfa.models", "ntfa.fitting"):
    for module in pkgutil.iter_modules(import_module(room).__path__, f"{room}."):
        import_module(module.name)
assert "sklearn" not in sys.modules, "scikit-learn was imported"
"""

BARE = """
import sys
for name in ("sklearn", "safetensors"):
    sys.modules[name] = None  # as if it were not installed
sys.path.insert(0, sys.argv[1])
import bare
import numpy as np
from ntfa import HTFA, NTFA, simulate
from ntfa.errors import ModelError, NotFittedError
grid = np.stack(np.meshgrid(*[np.arange(4) * 8.0] * 3), -1).reshape(-1, 3)
study = simulate("synthetic", n_participants=4, n_stimuli=4, n_frames=3, coordinates=grid, random_state=0).study
model = NTFA(n_factors=2, max_epochs=3, random_state=0, device="cpu")
try:
    model.transform(study)
except NotFittedError:
    print("not fitted")
try:
    model.set_params(n_facctors=2)
except ModelError:
    print("no such parameter")
assert model.get_params()["n_factors"] == 2
images, sds = model.fit(study).predict(study.trials, return_sd=True)
assert isinstance(model, bare.BaseEstimator) and images.shape == sds.shape == (16, 64)
print(model.participants_.shape, HTFA(2, max_epochs=2, random_state=0).fit(study).transform(study).shape)
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_numerical_core_does_not_import_scikit_learn() -> None:
    run(CORE)


def test_a_model_is_fitted_without_scikit_learn_and_safetensors() -> None:
    said = run(BARE, str(BENCHMARKS)).splitlines()
    assert said == ["not fitted", "no such parameter", "(4, 5) (16, 2)"]
