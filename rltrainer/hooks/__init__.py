"""What attaches to a trainer: hooks, the context that they see, and who calls them."""

from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook
from rltrainer.hooks.hook_runner import HookRunner

__all__ = ["HookRunner", "TrainerContext", "TrainerHook"]
