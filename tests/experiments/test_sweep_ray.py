"""Sweeps on a real Ray cluster of several nodes on this machine. Without Ray a skip, and a failure in CI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from common.errors import ConfigurationError
from experiments.harness import ONE_THREAD, sweep
from tests.sweep_support import one_thread_here, square

ray = pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()


def node_of(task: int) -> tuple[int, str]:
    """Return the task and the node that it ran on; long enough for all nodes to be needed at once."""
    import time

    time.sleep(1.0)  # work: a node that is free takes the next task
    context: Any = ray.get_runtime_context()
    return task, context.get_node_id()


def test_tasks_are_spread_over_the_nodes_of_the_cluster(address: str) -> None:
    done = list(sweep(node_of, range(9), engine="ray", ray_address=address))
    assert sorted(one.task for one in done) == list(range(9))
    assert [one.error for one in done] == [None] * 9
    assert len({one.value[1] for one in done if one.value}) >= 2


def test_values_and_failures_come_back_as_from_cores(address: str) -> None:
    done = {one.task: one for one in sweep(square, [2, -1], engine="ray", ray_address=address)}
    assert done[2].value == 4
    assert done[-1].error is not None
    assert "no square of a negative" in done[-1].error


def test_a_task_on_ray_has_one_blas_thread(address: str) -> None:
    (done,) = sweep(one_thread_here, [0], engine="ray", ray_address=address)
    assert done.value == dict.fromkeys(ONE_THREAD, "1")


def test_an_address_without_a_cluster_is_refused(address: str) -> None:  # noqa: ARG001 - Ray must be idle
    with pytest.raises(ConfigurationError, match=r"ray_address = '127\.0\.0\.1:1'"):
        list(sweep(square, [1], engine="ray", ray_address="127.0.0.1:1"))
