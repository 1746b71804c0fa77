"""What a command imports: nothing that takes long and that it does not use."""

import subprocess
import sys
from pathlib import Path

from ntfa import simulate

COMMAND = """
import atexit, sys
slow = {"nilearn", "sklearn.metrics", "sklearn.cluster", "torch._dynamo", "torch.onnx"}
atexit.register(lambda: print("slow:", sorted(slow & set(sys.modules))))
from ntfa.cli import main
sys.exit(main())
"""


def test_a_fit_with_its_report_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Voxels are in MNI space, so that factors, predictions and residuals are drawn on brains."""
    simulate("synthetic", n_participants=4, n_stimuli=4, n_frames=3, n_voxels=200).study.save(tmp_path / "study")
    arguments = ["fit", str(tmp_path / "study"), str(tmp_path / "out"), "--n-factors", "2", "--max-epochs", "3"]
    done = subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("slow: []\n")
    assert (tmp_path / "out" / "figures" / "noise.png").exists()
