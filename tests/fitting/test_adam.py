"""Adam against PyTorch's, and what a fit must not import."""

import subprocess
import sys

import torch

from ntfa.fitting.adam import Adam


def test_steps_are_those_of_pytorch_to_the_bit():
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in [(3,), (5, 7), (), (40, 30)]]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    one = Adam([{"params": ours[:2], "lr": 0.05}, {"params": ours[2:], "lr": 0.01}])
    other = torch.optim.Adam([{"params": theirs[:2], "lr": 0.05}, {"params": theirs[2:], "lr": 0.01}], fused=True)
    for step in range(12):
        for optimizer, parameters in ((one, ours), (other, theirs)):
            torch.manual_seed(step)
            optimizer.zero_grad()
            # What has no gradient stays where it is, and counts no step.
            for parameter in parameters[1:] if step == 5 else parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer.param_groups[0]["lr"] = 0.05 * (step + 1) / 12
            optimizer.step()
    assert all(torch.equal(*both) for both in zip(ours, theirs, strict=True))
    for mine, its in zip(ours, theirs, strict=True):
        assert {name: value.tolist() for name, value in one.state[mine].items()} == {
            name: value.tolist() for name, value in other.state[its].items()
        }


def test_a_fit_does_not_import_the_compiler():
    program = (
        "import sys\n"
        "from ntfa import NTFA, simulate\n"
        "study = simulate('synthetic', n_voxels=60, n_frames=2, random_state=0).study\n"
        "NTFA(2, response='network', max_epochs=4, random_state=0, device='cpu').fit(study)\n"
        "print(*{'torch._dynamo', 'sympy'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
