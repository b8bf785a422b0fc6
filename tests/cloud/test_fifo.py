"""The gradient buffer: order and bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.server import GradientFifo
from common.messages import GradientArrived
from common.quantities import EdgeId, NoisyGradient


def arrived(edge: str, sequence: int) -> GradientArrived:
    gradient = NoisyGradient(np.zeros(2, np.float32))
    return GradientArrived(EdgeId(edge), sequence, 1, 1.0, gradient)


def test_gradients_leave_in_the_order_in_which_they_came() -> None:
    fifo = GradientFifo(10)
    came = [arrived("b", 1), arrived("a", 2), arrived("a", 1), arrived("c", 9)]
    assert [fifo.offer(gradient) for gradient in came] == [None] * 4
    assert [fifo.take() for _ in came] == came
    assert len(fifo) == 0
    assert not fifo


def test_a_full_buffer_refuses_until_one_was_taken() -> None:
    fifo = GradientFifo(2)
    fifo.offer(arrived("a", 1))
    fifo.offer(arrived("a", 2))
    assert fifo.offer(arrived("a", 3)) == "full"
    fifo.take()
    assert fifo.offer(arrived("a", 3)) is None
    assert [fifo.take().sequence, fifo.take().sequence] == [2, 3]


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_buffer_without_room_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity = {capacity}"):
        GradientFifo(capacity)


def test_nothing_can_be_taken_from_an_empty_buffer() -> None:
    with pytest.raises(IndexError):
        GradientFifo(1).take()


@given(
    st.integers(1, 4),
    st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("abc"), st.integers(1, 3)))),
)
def test_it_behaves_like_a_plain_list_with_these_rules(
    capacity: int, steps: list[tuple[str, int] | None]
) -> None:
    fifo, model = GradientFifo(capacity), []
    for step in steps:
        if step is None:
            if model:
                taken = fifo.take()
                assert (taken.edge_id, taken.sequence) == model.pop(0)
            continue
        wanted = "full" if len(model) == capacity else None
        assert fifo.offer(arrived(*step)) == wanted
        if wanted is None:
            model.append(step)
        assert len(fifo) == len(model) <= capacity
