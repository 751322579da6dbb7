"""The start methods of processes: fork, spawn, or a fork server."""

import multiprocessing
import os
from multiprocessing import forkserver, util
from multiprocessing.context import BaseContext

from rltrainer.errors import ParamsError, field_error_text

_made_folder: tuple[int, str] | None = None


def make_context(start_method: str | None, owner: str = "make_vec") -> BaseContext:
    """Return how processes start; a `ParamsError` that names the owner if that is not possible here."""
    global _made_folder
    methods = multiprocessing.get_all_start_methods()
    method = start_method or ("forkserver" if "forkserver" in methods else "spawn")
    if method not in methods:
        rule = f"must be one of {', '.join(map(repr, methods))}, or None"
        raise ParamsError(field_error_text(owner, "start_method", rule, start_method))
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        # The server imports what takes seconds once, for all workers. Not rltrainer: the server may find another one
        # than this process did.
        known = getattr(forkserver._forkserver, "_preload_modules", ["__main__"])
        context.set_forkserver_preload([*dict.fromkeys([*known, "torch", "gymnasium"])])
        if "tempdir" not in multiprocessing.current_process()._config:  # type: ignore[attr-defined]  # no public way
            _made_folder = os.getpid(), util.get_temp_dir()  # where the server's socket will lie
    return context


def own_folder() -> str | None:
    """Return the folder that this process made in `make_context`, and no other one uses as its own."""
    return _made_folder[1] if _made_folder is not None and _made_folder[0] == os.getpid() else None
