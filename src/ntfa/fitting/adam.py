"""Adam (Kingma & Ba 2015), its arithmetic done by PyTorch in one call for all parameters of a group.

m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   x <- x - rate * m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)

`torch.optim.Adam(fused=True)` calls the same kernel to the same bits. But its first step imports PyTorch's compiler,
which takes longer than the whole fit of a small study, and every step prepares for what is never asked of it here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

BETAS, EPSILON = (0.9, 0.999), 1e-8


class Adam:
    """Moves parameters along their gradients.

    Parameters
    ----------
    groups : sequence of dict
        `params` of one precision and device, and `lr`, their learning rate: a number, or a scalar tensor beside them.

    Attributes
    ----------
    state : of each parameter that has had a gradient: `step`, and the moments `exp_avg` and `exp_avg_sq`
    """

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        self.param_groups = groups
        self.state: defaultdict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)

    def zero_grad(self) -> None:
        """Forget gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move what has a gradient."""
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not moved:
                continue
            states = [self._state(parameter) for parameter in moved]
            steps, means, squares = ([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                moved,
                [parameter.grad for parameter in moved],
                means,
                squares,
                [],
                steps,
                lr=group["lr"],
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=0.0,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state
