"""Trainers ask a data source, and reach through to no envs: one that has none of its own trains as a collector does."""

import dataclasses
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.collect import data_source
from tests.resume.runs import build, digest
from tests.unit.loggers.rows import ListLogger as Rows

ASKED = [name for name in (*data_source.DataSource.__annotations__, *vars(data_source.DataSource)) if name[0] != "_"]


class Elsewhere:
    """Hands on what the protocol names, and has nothing else: the envs might be in other processes."""

    def __init__(self, collector: rl.Collector) -> None:
        self._collector, self.num_syncs = collector, 0

    def sync(self, counts: Any = None) -> None:
        self.num_syncs += 1

    def shares_an_env(self, other: Any) -> bool:
        return self._collector.shares_an_env(other._collector)


def handed_on(name: str) -> Any:
    return property(lambda source: getattr(source._collector, name))


# No __getattr__: from Python 3.12 on, isinstance looks for what a protocol names without it.
for name in set(ASKED) - vars(Elsewhere).keys():
    setattr(Elsewhere, name, handed_on(name))


@pytest.mark.parametrize("name", ["ppo", "sac", "offline_iql"])
def test_a_source_without_envs_trains_as_a_collector_does(name: str) -> None:
    plain, other = build(name), build(name)
    sources = {field: Elsewhere(collector) for field, collector in other.params.collectors().items()}
    trainer = type(other)(other.algorithm, dataclasses.replace(other.params, **sources))
    plain.run()
    trainer.run()
    assert digest(trainer) == digest(plain)
    assert sources["test_collector"].num_syncs == 4  # before each test step
    if name != "offline_iql":
        assert sources["training_collector"].num_syncs == 6  # before each collection


def test_lost_envs_are_logged() -> None:
    logger = Rows(training_interval=1)
    trainer = build("ppo", logger=logger)
    trainer.params.training_collector.envs.unwrapped.num_restarts = 2
    trainer.run()
    assert {values["num_env_restarts"] for _, values in logger.of("training")} == {2}
