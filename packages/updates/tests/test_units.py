"""Units are views of the logical tensor, and their shapes are what a rule sees."""

import pytest
import torch

from sshsdp_updates import ELEMENT, OWN, ROW, columns, experts, heads, pieces, whole


def shown(unit, shape):
    """The tensor arange(n) unit by unit, each in its shape."""
    grid = unit.grid(shape)
    values = torch.arange(torch.Size(shape).numel())
    result = []
    for strip, worked in zip(grid.units.strips, grid.shapes, strict=True):
        runs = [
            values[strip.start + r * strip.stride :][: strip.length] for r in range(strip.count)
        ]
        result.append(torch.cat(runs).view(worked))
    return result


def numbers(shape):
    return torch.arange(torch.Size(shape).numel()).view(shape)


@pytest.mark.parametrize(
    ("unit", "shape", "expected"),
    [
        (whole(), (4, 6), lambda t: [t]),
        (whole(), (5,), lambda t: [t]),
        (whole(), (), lambda t: [t.view(1)]),
        (whole(), (4, 3, 2, 2), lambda t: [t.view(4, 12)]),
        (whole((6, 4)), (4, 6), lambda t: [t.view(6, 4)]),
        (heads(2), (6, 5), lambda t: list(t.split(2))),
        (heads(2), (3, 4, 5), lambda t: [h for e in t for h in e.split(2)]),
        (pieces((3, 1, 2)), (6, 5), lambda t: list(t.split([3, 1, 2]))),
        (columns(2), (3, 6), lambda t: list(t.split(2, dim=1))),
        (columns((4, 2)), (2, 3, 6), lambda t: [c for e in t for c in e.split([4, 2], dim=1)]),
        (experts(), (3, 4, 5), list),
        (experts(), (2, 3, 4, 5), lambda t: list(t.view(6, 4, 5))),
    ],
    ids=str,
)
def test_units_are_what_torch_s_views_are(unit, shape, expected):
    found, wanted = shown(unit, shape), expected(numbers(shape))
    assert len(found) == len(wanted) == unit.grid(shape).count
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize(
    ("unit", "shape", "text"),
    [
        (heads(4), (6, 5), r"heads\(4\) to cover 6 .* shape \(6, 5\), got 4"),
        (pieces((2, 2)), (6, 5), r"pieces\(2, 2\) to cover 6 .* got 4"),
        (columns(4), (5, 6), r"columns\(4\) to cover 6"),
        (heads(2), (6,), r"2 or more dimensions for heads\(2\), got shape \(6,\)"),
        (whole((5, 5)), (4, 6), r"a shape of 24 elements"),
    ],
)
def test_units_that_a_tensor_does_not_have_are_named(unit, shape, text):
    with pytest.raises(ValueError, match=text):
        unit.grid(shape)


@pytest.mark.parametrize("make", [heads, columns, lambda size: pieces((size,))])
def test_units_of_no_size_are_refused(make):
    with pytest.raises(ValueError, match="1 or more rows or columns, got 0"):
        make(0)


def test_counts_of_what_is_not_a_view():
    assert ELEMENT.count((6, 5), heads(2)) == 30
    assert ROW.count((6, 5), heads(2)) == 6
    assert ROW.count((6, 5), columns(1)) == 30
    assert OWN.count((6, 5), heads(2)) == 3
