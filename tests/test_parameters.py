"""Models of a command: parameters as scikit-learn reads and sets them, without scikit-learn."""

import subprocess
import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import pytest
from sklearn.base import BaseEstimator

from ntfa import NTFA, simulate
from ntfa.parameters import Parameters, available_if, estimator_base


@dataclass(eq=False, repr=False)
class Settings:
    one: int = 1
    _: KW_ONLY
    other: str = "two"


class Light(Settings, Parameters):
    pass


class Usual(Settings, BaseEstimator):
    pass


def test_parameters_are_read_set_and_shown_as_scikit_learn_does() -> None:
    light, usual = Light(3), Usual(3)
    assert light.get_params() == usual.get_params() == {"one": 3, "other": "two"}
    assert repr(light).replace("Light", "Usual") == repr(usual)
    assert light.set_params(other="three") is light
    assert light.get_params() == usual.set_params(other="three").get_params()
    for model in (light, usual):
        with pytest.raises(ValueError, match="Invalid parameter 'third'"):
            model.set_params(third=3)


def test_a_method_that_is_lacking_is_not_there() -> None:
    class Model:
        able = False

        @available_if(lambda self: self.able)
        def transform(self) -> str:
            """Say so."""
            return "done"

    model = Model()
    assert not hasattr(model, "transform")
    assert Model.transform.__doc__ == "Say so."
    model.able = True
    assert model.transform() == "done"


def test_models_in_a_program_are_scikit_learns() -> None:
    assert estimator_base() is BaseEstimator
    assert isinstance(NTFA(), BaseEstimator)


COMMAND = """
import atexit, sys
slow = {"sklearn", "nilearn", "scipy.stats", "scipy.optimize", "scipy.signal", "torch._dynamo", "torch.onnx"}
atexit.register(lambda: print("slow:", sorted(slow & set(sys.modules))))
from ntfa.cli import main
sys.exit(main())
"""


def test_a_fit_with_its_report_imports_nothing_slow_but_pytorch_and_matplotlib(tmp_path: Path) -> None:
    """Voxels are in MNI space, so that factors, predictions and residuals are drawn on brains."""
    simulate("synthetic", n_participants=4, n_stimuli=4, n_frames=3, n_voxels=200).study.save(tmp_path / "study")
    arguments = ["fit", str(tmp_path / "study"), str(tmp_path / "out"), "--n-factors", "2", "--max-epochs", "3"]
    done = subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("slow: []\n")
    assert (tmp_path / "out" / "figures" / "noise.png").exists()
