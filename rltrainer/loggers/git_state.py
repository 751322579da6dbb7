"""The state of the repository that a program runs in, for who wants to know later what it was."""

import os
import subprocess
from typing import Any

_SECONDS = 10
"""After which a repository is taken for none: one on a drive that does not answer, say."""


def git_state() -> dict[str, Any] | None:
    """Return `commit`, and `dirty` if tracked files differ from it, of the current folder's repository.

    None without a repository, a commit, or git itself. Nothing that the repository configures is run.
    """
    commit = _git("rev-parse", "--verify", "HEAD")
    if commit is None or commit.returncode != 0:
        return None
    differs = _git("diff-index", "--quiet", "HEAD", "--")
    return {"commit": commit.stdout.strip(), "dirty": differs is None or differs.returncode != 0}


def _git(*args: str) -> "subprocess.CompletedProcess[str] | None":
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=" + os.devnull, *args]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
