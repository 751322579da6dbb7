"""The checkpoints in the directory of a run: found by their names, told apart by their manifests."""

import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from rltrainer.checkpoint.directory import check_checkpoint
from rltrainer.checkpoint.manifest import Manifest, read_manifest
from rltrainer.errors import CheckpointError

_NAME = re.compile(r"checkpoint-(\d{1,18})(?:-\d+)?", re.ASCII)
_LEFTOVER = re.compile(r"\.checkpoint-\d+(?:-\d+)?\..*\.(?:new|gone)", re.ASCII)


@dataclass(frozen=True)
class Found:
    """A directory with a checkpoint's name, and its manifest or what is wrong with that."""

    path: Path
    step: int
    manifest: Manifest | None
    problem: str = ""


def checkpoints_in(directory: Path) -> list[Found]:
    """Return the checkpoints of a run, the newest first; those without a manifest that can be read before all others.

    A link stands for the checkpoint that it leads to; removing it leaves that alone.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    for name in os.listdir(directory) if directory.is_dir() else []:
        match, path = _NAME.fullmatch(name), directory / name
        if match is None:
            continue
        if not path.is_dir():
            what = "is a link that leads to no directory" if path.is_symlink() else "is no directory"
            found.append(Found(path, int(match[1]), None, f"{path}: {what}"))
            continue
        try:
            found.append(Found(path, int(match[1]), read_manifest(path)))
        except (CheckpointError, OSError) as error:
            found.append(Found(path, int(match[1]), None, str(error)))
    return sorted(found, key=_age)


def leftovers_in(directory: Path) -> list[Path]:
    """Return what saves that are over left half written or half removed."""
    return [directory / name for name in os.listdir(directory) if _LEFTOVER.fullmatch(name)]


def free_path(directory: Path, step: int) -> Path:
    """Return a path for the checkpoint of a step; one that is there already keeps its name."""
    path, number = directory / f"checkpoint-{step:012d}", 1
    while os.path.lexists(path):
        number += 1
        path = directory / f"checkpoint-{step:012d}-{number}"
    return path


def newest_intact(directory: Path) -> Path | None:
    """Return the newest checkpoint that is whole; see `CheckpointStore.newest_intact`."""
    try:
        found = checkpoints_in(directory)
    except OSError as error:
        raise CheckpointError(f"{directory}: could not be read ({error})") from error
    problems = []
    for each in found:
        problem = each.problem
        if not problem:
            try:
                check_checkpoint(each.path)
                return each.path
            except CheckpointError as error:
                problem = str(error)
        problems.append(problem)
        warnings.warn(f"a checkpoint is damaged and passed over: {problem}", RuntimeWarning, stacklevel=3)
    if problems:
        text = f"{directory}: all {len(problems)} checkpoints are damaged; the newest: {problems[0]}"
        raise CheckpointError(f"{text}. Give another path, or move them away to begin anew.")
    return None


def _age(found: Found) -> tuple[bool, int, int]:
    serial = 0 if found.manifest is None else found.manifest.serial
    return found.manifest is not None, -serial, -found.step
