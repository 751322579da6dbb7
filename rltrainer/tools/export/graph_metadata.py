"""Texts by name in which a graph's file describes itself, for any language to read."""

import json
from importlib import metadata

from rltrainer.files.json_text import to_strict_json
from rltrainer.nets.policy import Policy
from rltrainer.spaces import leaf_spaces, to_plain
from rltrainer.tools.export.examples import dotted_names, seen_part

STATE, ACTION, NEXT_STATE = "state", "action", "next_state"


def input_names(policy: Policy) -> list[str]:
    """Return what the inputs of a policy's graph are called, in their order."""
    seen = seen_part(policy, leaf_spaces(policy.observation_space))
    return [*dotted_names(seen), *([STATE] if policy.is_recurrent else [])]


def output_names(policy: Policy) -> list[str]:
    """Return what the outputs are called."""
    return [ACTION, NEXT_STATE] if policy.is_recurrent else [ACTION]


def describe(policy: Policy) -> dict[str, str]:
    """Return version, class and spaces of a policy, and the names; spaces and names are JSON."""
    return {
        "rltrainer": version(),
        "policy": type(policy).__name__,
        "observation_space": to_strict_json(to_plain(policy.observation_space)),
        "action_space": to_strict_json(to_plain(policy.action_space)),
        "inputs": json.dumps(input_names(policy)),
        "outputs": json.dumps(output_names(policy)),
    }


def version() -> str:
    """Return the version of rltrainer; nothing where it is imported from a folder."""
    try:
        return metadata.version("rltrainer")
    except metadata.PackageNotFoundError:
        return ""
