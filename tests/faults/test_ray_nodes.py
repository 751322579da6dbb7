"""A node of a Ray cluster is lost, and the run continues on the others."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

import rltrainer as rl
from tests.unit.collect.async_parts import pendulums
from tests.unit.collect.test_ray_cluster import ENVIRONMENT, MEMORY, OPTIONS, QUIET

ray: Any = pytest.importorskip("ray")
pytestmark = [pytest.mark.full, pytest.mark.timeout(300), pytest.mark.xdist_group("ray")]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a cluster, for now of a node without the resource `env`."""
    from ray.cluster_utils import Cluster

    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp" if os.path.isdir("/tmp") else None)
    os.mkdir(os.path.join(folder, "ray"))
    monkeypatch.setenv("RAY_TMPDIR", folder)
    head = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=made.address, log_to_driver=False, logging_level=OPTIONS["logging_level"])
    yield made
    ray.shutdown()
    made.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_run_survives_the_loss_of_a_node(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    cluster.wait_for_nodes()
    algorithm = rl.IMPALA(rl.ActorCritic.for_envs(pendulums(), hidden_sizes=(4,)), rl.IMPALAParams())
    collector = rl.RayCollector(algorithm.policy, pendulums, 2)  # a node has room for one actor
    removed: list[Any] = []

    def remove(epoch: int, env_step: int) -> None:
        if env_step >= 64 and not removed:
            cluster.remove_node(node)
            removed.append(cluster.add_node(num_cpus=1, object_store_memory=MEMORY))

    params = rl.OnPolicyTrainerParams(
        training_collector=collector, max_epochs=2, epoch_num_steps=96, collection_step_num_env_steps=32,
        training_fn=remove, seed=1, **QUIET,
    )  # fmt: skip
    info = algorithm.run_training(params)
    assert removed
    assert info.env_step == 192
    assert collector.settings()["actor_restarts"] >= 1
    assert collector.num_env_restarts == collector.settings()["actor_restarts"]
    collector.close()
