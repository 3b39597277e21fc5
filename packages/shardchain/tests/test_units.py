"""Units tile their tensor, and ranges of the tensor are ranges of each unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import Range, Strip, Units


def elements(strip):
    """The unit's elements in unit order, written out."""
    return [
        strip.start + run * strip.stride + i
        for run in range(strip.count)
        for i in range(strip.length)
    ]


@st.composite
def units(draw):
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=6))
    if draw(st.booleans()):
        return Units.pieces(sizes)
    return Units.columns(draw(st.integers(0, 5)), sizes, draw(st.integers(1, 3)))


@given(units())
def test_every_element_is_in_exactly_one_unit(cut):
    assert sorted(e for strip in cut.strips for e in elements(strip)) == list(range(cut.numel))


@given(units(), st.integers(0, 100), st.integers(0, 100))
def test_what_a_range_of_the_tensor_holds_of_a_unit_is_a_range_of_the_unit(cut, first, second):
    start, stop = sorted((min(first, cut.numel), min(second, cut.numel)))
    for strip in cut.strips:
        inside = [i for i, e in enumerate(elements(strip)) if start <= e < stop]
        assert list(range(strip.position(start), strip.position(stop))) == inside


@given(units(), st.integers(0, 100), st.integers(0, 100))
def test_boxes_are_the_elements_in_order(cut, first, second):
    for strip in cut.strips:
        start, stop = sorted((min(first, strip.numel), min(second, strip.numel)))
        boxes = list(strip.boxes(Range(start, stop)))
        assert len(boxes) <= 3
        found = []
        for box in boxes:
            assert box.position == start + len(found)
            found += [
                box.element + r * box.stride + i
                for r in range(box.count)
                for i in range(box.length)
            ]
        assert found == elements(strip)[start:stop]


def test_columns_of_no_rows_are_so_many_empty_units():
    assert Units.columns(0, [2, 3], 2).strips == (Strip(0, 0),) * 4


def test_a_contiguous_unit_can_be_seen_as_rows():
    assert elements(Strip(5, 12).rows(4)) == elements(Strip(5, 12))
    assert Strip(5, 12).rows(4) == Strip(5, 4, 3, 4)


@pytest.mark.parametrize("strip", [Strip(0, 12), Strip(0, 4, 3, 8)])
def test_rows_that_do_not_divide_a_unit_are_refused(strip):
    with pytest.raises(ValueError, match=r"in runs of 5 elements; use a divisor"):
        strip.rows(5)


@pytest.mark.parametrize("arguments", [(-1, 2), (0, -2), (0, 2, 0), (0, 4, 2, 3)])
def test_impossible_units_are_refused(arguments):
    with pytest.raises(ValueError, match="expected"):
        Strip(*arguments)


def test_units_of_other_size_than_the_tensor_are_refused():
    with pytest.raises(ValueError, match="expected units of 5 elements in all, got 4"):
        Units(5, (Strip(0, 4),), True)
