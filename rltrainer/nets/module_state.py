"""Saved states of networks: checked as a whole before anything is loaded, or reduced to the tensors that fit."""

import copy
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rltrainer.errors import CheckpointError, readable
from rltrainer.nets.encoder import ByteEncoder
from rltrainer.nets.normalizer import RunningMoments
from rltrainer.state.codec import check_like
from rltrainer.types import State

AS_SAVED = "Build the networks as they were when saved."
_EXTRA = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """Names that `load(path, strict=False)` left out, as PyTorch's `load_state_dict` returns them."""

    missing_keys: list[str]
    """Names that are missing in the file."""
    unexpected_keys: list[str]
    """Names that only the file holds."""
    mismatched_keys: list[str]
    """Names of another shape or kind; PyTorch raises here."""

    def describe(self) -> str:
        """Return a sentence that names all of them; empty if everything was loaded."""
        texts = ("missing in the file", "only in the file", "of another shape or kind")
        return "; ".join(f"{text}: {', '.join(names)}" for text, names in zip(texts, self, strict=True) if names)


def completed(module: nn.Module, saved: dict[str, Any]) -> dict[str, Any]:
    """Return a saved state with the scales of bytes, if these are all that an older release did not save."""
    parts = [path for path, part in module.named_modules() if isinstance(part, ByteEncoder)]
    scales = {f"{path}.scale": torch.ones(()) for path in parts}
    return {**scales, **saved} if parts and module.state_dict().keys() - saved.keys() <= scales.keys() else saved


def check_module(name: str, module: nn.Module, saved: Any) -> None:
    """Raise a `CheckpointError`, its text starting with `name`, unless a saved state fits a network."""
    # Before anything is loaded: `load_state_dict` would have changed half of the network when it finds a misfit.
    if not isinstance(saved, dict):
        raise CheckpointError(f"{name}: expected a mapping, found {readable(saved)}")
    own, saved = module.state_dict(), completed(module, saved)
    for key in [*own, *saved]:
        if key not in saved or key not in own:
            where = "saved state" if key not in saved else "policy"
            raise CheckpointError(f"{name}.{key}: missing in the {where}. {AS_SAVED}")
        if key.endswith(_EXTRA):
            _try_extra_state(f"{name}.{key}", module, key, saved[key])
        else:
            check_like(f"{name}.{key}", own[key], saved[key], AS_SAVED)
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        names: tuple[str, ...] = ("var", "count") if isinstance(part, RunningMoments) else ()
        for key in names or getattr(part, "not_negative", ()):  # of statistics
            check_like(f"{name}.{prefix}{key}", own[prefix + key], saved[prefix + key], AS_SAVED, least=0)
        if problem := _other_bounds(part, saved, prefix):
            raise CheckpointError(f"{name}.{problem}. {AS_SAVED}")


def load_module(name: str, module: nn.Module, saved: Any, strict: bool) -> IncompatibleKeys:
    """Load a saved state, or its fitting part, into a network, and return the names that were left out."""
    left_out = IncompatibleKeys([], [], [])
    if not strict:
        saved = fitting_module_state(module, saved, "", left_out)
    check_module(name, module, saved)
    module.load_state_dict(saved)
    return left_out


def fitting_module_state(module: nn.Module, saved: Any, prefix: str, left_out: IncompatibleKeys) -> Any:
    """Return a whole state of a network: the saved values that fit, and the present ones elsewhere.

    `left_out` gets the names, after `prefix`, of the values that do not fit.
    """
    if not isinstance(saved, dict):
        return saved
    own, saved = dict(module.state_dict()), completed(module, saved)
    fitting = {key for key in own if key in saved and _fits(module, key, own[key], saved[key])}
    for path, part in module.named_modules():
        inner = f"{path}." if path else ""
        # A normaliser's mean, variance and count are taken together or not at all; bounds of actions stay the policy's.
        together = {f"{inner}{name}" for name, _ in part.named_buffers(recurse=False)}
        is_incomplete = isinstance(part, RunningMoments) and not together <= fitting
        if is_incomplete or _other_bounds(part, saved, inner):
            fitting -= together
    left_out.missing_keys.extend(prefix + key for key in own if key not in saved)
    left_out.unexpected_keys.extend(prefix + key for key in saved if key not in own)
    left_out.mismatched_keys.extend(prefix + key for key in own if key in saved and key not in fitting)
    return {key: saved[key] if key in fitting else value for key, value in own.items()}


def _fits(module: nn.Module, key: str, own: Any, saved: Any) -> bool:
    if key.endswith(_EXTRA):
        try:
            _try_extra_state(key, module, key, saved)
        except CheckpointError:
            return False
        return True
    if not isinstance(saved, Tensor):
        return True  # damaged: `check_module` raises
    return bool(own.shape == saved.shape and own.dtype == saved.dtype)


def _other_bounds(module: nn.Module, saved: State, prefix: str) -> str | None:
    """Return the text of an error if actions had other bounds when the state was saved, else None."""
    asks = getattr(module, "other_bounds", None)
    return None if asks is None else asks(saved, prefix)


def _try_extra_state(name: str, module: nn.Module, key: str, saved: Any) -> None:
    """Try an extra state on a copy of its module, which alone knows if it fits."""
    part = module.get_submodule(key[: -len(_EXTRA)].removesuffix("."))
    try:
        cast(Any, copy.deepcopy(part)).set_extra_state(saved)
    except Exception as error:
        raise CheckpointError(f"{name}: does not fit ({type(error).__name__}: {error})") from error
