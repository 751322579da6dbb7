"""Parameters that a loss does not depend on: left alone, and named once."""

import warnings
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from rltrainer.errors import ParamsError


class UnusedParameters:
    """Notes the parameters that have no gradient, in a traced step too, and names them after the update.

    Args:
        modules: the modules that an optimizer trains.
        parameters: their parameters.
        names: of these, by parameter.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], parameters: Sequence[nn.Parameter], names: Mapping[nn.Parameter, str]
    ) -> None:
        self._modules, self._parameters, self._names = modules, parameters, names
        self._last, self._told = list[int](), set[int]()

    @property
    def last(self) -> list[Tensor]:
        """Unused parameters of the last step that had any."""
        return [self._parameters[i] for i in self._last]

    def note(self, unused: Sequence[Tensor]) -> None:
        """Remember these, by their numbers."""
        found = dict.fromkeys(unused)
        self._last = [i for i, parameter in enumerate(self._parameters) if parameter in found]

    def tell(self, owner: str) -> None:
        """Warn of those that are new.

        Raises:
            ParamsError: one is no longer in the modules, so that another one in its place would not be trained; or the
                loss depends on none at all.
        """
        new = [i for i in self._last if i not in self._told]
        if not new:
            return
        present = {id(parameter) for module in self._modules.values() for parameter in module.parameters()}
        for i in new:
            if id(self._parameters[i]) not in present:
                text = "must stay the same object while it is trained; another one took its place"
                raise ParamsError(f"{owner}: {self._name(i)} {text}. Copy into it, or build the algorithm again.")
        names = ", ".join(map(self._name, new))
        if not any(p.requires_grad for i, p in enumerate(self._parameters) if i not in self._last):
            raise ParamsError(f"{owner}: a loss must depend on what its optimizer trains; it does not on {names}.")
        self._told.update(new)
        hint = "Freeze what should not be trained (requires_grad_(False))."
        warnings.warn(f"{owner}: the loss does not depend on {names}, which stay as they are. {hint}", stacklevel=2)

    def _name(self, i: int) -> str:
        return self._names[self._parameters[i]]
