"""What cuts cost: elements counted one by one."""

from hypothesis import example, given
from hypothesis import strategies as st

from sshsdp_shardchain.planner.cost import elements_outside

from .brute_force import count_outside


@given(st.integers(0, 50), st.integers(0, 60), st.integers(1, 70), st.integers(1, 25))
@example(start=3, numel=60, unit=60, chunk=7)  # one unit over many chunks
@example(start=5, numel=47, unit=5, chunk=5)  # units as large as chunks, out of step, a rest
@example(start=0, numel=60, unit=5, chunk=20)  # in step
def test_elements_outside_are_those_that_counting_finds(start, numel, unit, chunk):
    counted = count_outside(start, ((numel, unit, 1),), chunk)
    assert elements_outside(start, numel, unit, chunk) == counted


def test_a_cut_through_the_middle_costs_half_and_one_at_a_border_nothing():
    assert elements_outside(0, 100, 10, 25) == 5 + 5  # at 25 and 75; 50 is between two units
    assert elements_outside(5, 100, 10, 25) == 0 + 5 + 0 + 5
    assert elements_outside(0, 100, 1, 7) == 0


def test_a_unit_over_many_chunks_keeps_one_of_them():
    assert elements_outside(3, 40, 40, 10) == 30
