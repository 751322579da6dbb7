"""Algorithms and policies from files that describe their own construction; nothing in a file is imported or run."""

import operator
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from rltrainer import errors
from rltrainer.algorithms.algorithm import Algorithm
from rltrainer.device import require_device, resolve_device
from rltrainer.errors import CheckpointError, ParamsError, SpaceError, readable
from rltrainer.loggers import RunFolder
from rltrainer.nets.module_state import IncompatibleKeys
from rltrainer.nets.policy import Policy
from rltrainer.nets.weight_dtype import saved_dtype
from rltrainer.spaces import check_claims
from rltrainer.state.plain import MAX_ITEMS, PlainReader, items_of
from rltrainer.state.registry import Named, users_names
from rltrainer.state.state_file import read_state
from rltrainer.types import State
from rltrainer.validation.field_rules import AnyPath, Flag, checked, is_int

META = torch.device("meta")  # shapes without numbers
Player = Policy | Algorithm | str | os.PathLike[str]
"""A policy, an algorithm, or a path that one was saved to: a file, the folder of a run, a checkpoint."""


def load(
    path: str | Path, *, classes: Named = (), device: str | torch.device = "cpu", strict: bool = True
) -> Algorithm:
    """Return the algorithm that `algorithm.save` wrote, ready to continue training. The file runs nothing.

    Policy, networks, normalisers, params and optimizers are built from known names only: from rltrainer, from
    `rl.register`, and from `classes`.

    Args:
        path: the file; or the folder of a run, for its best algorithm, or a checkpoint.
        classes: your classes and functions that the file names; or a dict from names, or from places such as
            `policy.net.encoder`, to them and to your objects. The error about a missing one says its place.
        device: where the networks live, such as "cuda"; "auto" decides as `rl.train` does.
        strict: False loads the parts that fit, if classes have changed since; a warning names the others.

    Raises:
        CheckpointError: the file is missing or damaged, holds no algorithm or no construction, or has an unknown name;
            the text says what to do.
    """
    file = _File(path, "load", classes, device, strict)
    if "algorithm" not in file.state:
        raise CheckpointError(f"{file.path}: holds a policy without an algorithm. Load it with rl.load_policy.")
    algorithm: Algorithm = file.build(file.construction, Algorithm)
    algorithm.set_weight_dtype(file.weight_dtype)
    state, left_out = (file.state, None) if strict else algorithm.fitting_state(file.state)
    try:
        algorithm.load_state_dict(state)
    except CheckpointError as error:
        raise CheckpointError(f"{file.path}: {error}") from error
    file.warn(left_out)
    return algorithm


def load_policy(
    path: str | Path, *, classes: Named = (), device: str | torch.device = "cpu", strict: bool = True
) -> Policy:
    """Return the policy in a policy's or an algorithm's file, in eval mode; arguments as of `load`.

    Raises:
        CheckpointError: see `load`.
    """
    file = _File(path, "load_policy", classes, device, strict)
    policy: Policy = file.build(file.policy_construction, Policy)
    policy.set_weight_dtype(file.weight_dtype)
    file.warn(policy.load(file.path, strict=strict))
    return policy.eval()


def policy_of(owner: str, player: Player) -> Policy:
    """Return the policy of an object or a path, or a run's best policy; a `ParamsError` about `owner` without one."""
    if isinstance(player, Algorithm):
        return player.policy
    if isinstance(player, Policy):
        return player
    is_path = isinstance(player, str | os.PathLike) and str(player) != ""
    is_id = is_path and str(player) in gym.registry and not Path(player).exists()
    if is_path and not is_id:
        return load_policy(Path(player))
    rule = "must be a policy, an algorithm, or the path of a file or folder that one was saved to"
    hint = f"It is the id of an env; the policy comes first: {owner}(policy, env)." if is_id else ""
    if isinstance(player, gym.Env | gym.vector.VectorEnv):
        hint = f"The policy comes first: {owner}(policy, env)."
    raise ParamsError.about(owner, "policy", rule, player, hint)


class _File:
    """A file after reading, with the objects that it describes."""

    def __init__(self, path: str | Path, reader: str, classes: Named, device: str | torch.device, strict: bool) -> None:
        self.path = Path(checked(reader, "path", path, AnyPath))
        if self.path.is_dir():  # a checkpoint, or a run, of which the best algorithm is meant
            files = self.path / "algorithm.safetensors", RunFolder(self.path).best
            if (found := next(filter(Path.exists, files), None)) is None:
                expected = f"expected a checkpoint or the folder of a run with {' or '.join(f.name for f in files)}"
                hint = "A run has its best once it made a test step"
                raise CheckpointError(f"{self.path}: {expected}, found neither. {hint}")
            self.path = found
        self._strict = checked(reader, "strict", strict, Flag)
        users, placed = users_names(classes), classes if isinstance(classes, Mapping) else {}
        self._reader = PlainReader(users, self._remedy, self._make, placed)
        is_auto = isinstance(device, str) and device == "auto"  # until the policy is known
        self._owner, self._device = reader, device if is_auto else require_device(reader, device)
        self._target = self._device
        self.state: State = read_state(self.path, "algorithm", CheckpointError, or_kind="policy")
        if "construction" not in self.state:
            hint = "Build the algorithm as it was, and call its `load` with this file."
            raise CheckpointError(f"{self.path}: does not say what the algorithm was built with. {hint}")
        self.construction = self.policy_construction = self.state["construction"]
        self._policy_place = "policy"
        # An algorithm's first argument is its policy, by name or without; RND's is an algorithm.
        owner, around = self.construction, ""
        match owner:
            case {"options": {"algorithm": wrapped}}:
                owner, around = wrapped, "algorithm."
        match owner:
            case {"options": {"policy": policy}}:
                self.policy_construction = policy
            case {"args": [{"built": _} as policy, *_]}:
                self.policy_construction, self._policy_place = policy, "0"
        self._policy_place = around + self._policy_place
        self.weight_dtype = saved_dtype(f"{self.path}", self.state)

    def build(self, plain: Any, kind: type[Any]) -> Any:
        """Build the object that the file describes, once its size fits the numbers in the file."""
        try:
            check_claims(self.construction, self.path.stat().st_size)
        except SpaceError as error:
            raise CheckpointError(f"{self.path}: {error}") from error
        if (found := sum(1 for _ in items_of(self.construction))) > MAX_ITEMS:
            raise CheckpointError(f"{self.path}: expected at most {MAX_ITEMS} values to build from, found {found}")
        if kind is Algorithm:
            self._check_layers()
        with torch.random.fork_rng(devices=[]):  # the first weights are random, and are overwritten
            self._check_size()
            if kind is Algorithm:
                self._check_others()
            return self._read(plain, kind, self._device)

    def warn(self, left_out: IncompatibleKeys | None) -> None:
        """Name what was not loaded, if anything."""
        if left_out is not None and any(left_out):
            warnings.warn(f"{self.path}: not all of it was loaded; {left_out.describe()}", stacklevel=3)  # the caller's

    def _check_size(self) -> None:
        """Check how many numbers the networks hold, before there is memory for them."""
        expected, saved = self._size_of(self.policy_construction, self._policy_place), self.state.get("policy")
        tensors = [value for value in saved.values() if isinstance(value, Tensor)] if isinstance(saved, dict) else []
        found = sum(map(Tensor.numel, tensors))
        if found < (expected if self._strict else expected / 2):  # so a small file asks for little memory
            raise CheckpointError(f"{self.path}: its policy takes {expected} numbers, and it holds {found}")

    def _check_layers(self) -> None:
        """Check that no network beside the policy is described whose weights the file has no room for."""
        size = self.path.stat().st_size
        for each in items_of(self.construction):
            match each:
                case {"fields": {"net": {"fields": {"hidden_sizes": list() | None as given}}, "num_outputs": outputs}}:
                    sizes = [*(given or [64]), outputs]
                case {"fields": {"hidden_sizes": list(sizes)}}:
                    pass
                case _:
                    continue
            numbers = [n for n in sizes if is_int(n)]
            if max(numbers, default=0) > size or sum(map(operator.mul, numbers, numbers[1:])) > size:
                raise CheckpointError(f"{self.path}: has {size} bytes, too few for layers of {readable(sizes)} units")

    def _check_others(self) -> None:
        """Check the same of the other policies that an algorithm is made of, such as a teacher."""
        around, dot, own = self._policy_place.rpartition(".")
        owner = self.construction["options"][around] if around else self.construction
        options = owner.get("options") if isinstance(owner, dict) else None
        for name, plain in options.items() if isinstance(options, dict) else ():
            is_other = isinstance(plain, dict) and "built" in plain and name != own
            if is_other and (expected := self._size_of(plain, around + dot + name)) > (
                size := self.path.stat().st_size
            ):
                raise CheckpointError(f"{self.path}: its {name} takes {expected} numbers, and it has {size} bytes")

    def _size_of(self, plain: Any, place: str) -> int:
        """Return how many numbers a policy takes, as far as that is known; 0 if a user's class cannot tell."""
        try:
            with META:
                return sum(map(Tensor.numel, self._read(plain, Policy, META, place).parameters()))
        except CheckpointError:
            for item in items_of(plain):
                if isinstance(item, dict) and isinstance(item.get("live"), str):
                    return 0  # a user's class may need numbers to be built
            raise

    def _read(self, plain: Any, kind: type[Any], device: torch.device | str, place: str | None = None) -> Any:
        self._target = device
        try:
            reader = self._reader.inside(place or self._policy_place) if kind is Policy else self._reader
            made = reader.read(plain, kind.__name__)
        except Exception as error:  # a file may say anything
            if isinstance(error, errors.RLTrainerError) and not isinstance(error, errors.ArgumentError):
                raise CheckpointError(f"{self.path}: {error}") from error
            text = f"what it says cannot be built ({type(error).__name__}: {error})"
            raise CheckpointError(f"{self.path}: {text}") from error
        if not isinstance(made, kind):
            raise CheckpointError(f"{self.path}: says that it holds a {type(made).__name__}, no {kind.__name__}")
        return made

    def _make(self, cls: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if not isinstance(cls, type) or not issubclass(cls, Policy | Algorithm):
            raise ParamsError(f"{cls!r} is no class of policies or algorithms")
        made = cls(*args, **options)
        if not isinstance(made, Policy):
            return made
        return made.to(resolve_device(self._owner, self._target, made, made.observation_space))

    def _remedy(self, place: str, name: str) -> str:
        short, key, ways = name.rpartition("<locals>.")[2], place or name, []
        found = [item for item in items_of(self.construction) if isinstance(item, dict)]
        is_alone = sum(name in (item.get("live"), item.get("params")) for item in found) == 1
        # A lambda has no name to write there, and a name that stands twice may be the name of two objects.
        if is_alone and "<" not in short and len(short) <= errors.MAX_LENGTH:
            ways.append(f"classes=[{short}]" + (" if it is a class or a function" if place else ""))
        if len(key) <= errors.MAX_LENGTH:
            ways.append(f"classes={{{key!r}: ...}}")
        if not ways:
            return f"the file only names {readable(name)}, and no class or function has such a name"
        return f"the file only names {readable(name)}. Pass what that is: {', or '.join(ways)}"
