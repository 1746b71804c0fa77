"""One process's part of a fit that several share: its participants' rows of every variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from ntfa.inference.normal import NormalPosterior
from ntfa.inference.processes import ALONE, Processes, Share


@dataclass(frozen=True)
class Sharing:
    """The processes of a fit, and which rows of the model's own variables this one has.

    shares : by name of the model's attribute; variables that are not here are all processes' alike
    """

    processes: Processes = ALONE
    shares: Mapping[str, Share] = field(default_factory=dict)

    def is_own(self, variable: str) -> bool:
        """Whether a variable, or a part of it such as `centers.mean`, has rows of this process only."""
        return self._name(variable) in self.shares

    def gather(self, variable: str, tensor: Tensor) -> Tensor:
        """Return a variable with the rows of all processes."""
        return self.processes.gather(tensor) if self.is_own(variable) and tensor.dim() else tensor

    def own(self, variable: str, tensor: Tensor) -> Tensor:
        """Return this process's rows of a variable that has all."""
        return tensor[self.shares[self._name(variable)].rows] if self.is_own(variable) and tensor.dim() else tensor

    def take(self, module: nn.Module) -> None:
        """Leave a module, which has the rows of all processes, with those of this one."""
        for name, part in module.named_modules():
            if isinstance(part, NormalPosterior):
                part.share = self.shares.get(name)
                part.counted = self.is_own(name) or self.processes.is_first
            for attribute, parameter in list(part.named_parameters(recurse=False)):
                variable = f"{name}.{attribute}" if name else attribute
                if self.is_own(variable):
                    setattr(part, attribute, nn.Parameter(self.own(variable, parameter.detach()).clone()))

    @staticmethod
    def _name(variable: str) -> str:
        return variable.split(".")[0]
