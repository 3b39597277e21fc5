"""A flat range is cut into few disjoint rectangles that cover exactly it."""

import itertools
import math

import pytest

from sshsdp_fsdp_runtime.runtime.boxes import boxes

SHAPES = [
    (),
    *itertools.product((0, 1, 2, 7, 13), repeat=1),
    *itertools.product((0, 1, 2, 3, 7), repeat=2),
    *itertools.product((0, 1, 2, 3, 5), repeat=3),
    *itertools.product((1, 2, 3), repeat=4),
    (0, 2, 3, 5),
    (2, 0, 3, 5),
    (2, 3, 5, 0),
]


def flat_indices(shape, box):
    """Row-major indices of the elements at the coordinates of a box, in order."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    spans = [range(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True)]
    return [
        sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*spans)
    ]


@pytest.mark.parametrize("dims", range(5))
def test_every_range_of_every_shape_is_covered_once_in_flat_order(dims):
    for shape in (shape for shape in SHAPES if len(shape) == dims):
        numel = math.prod(shape)
        for start, stop in itertools.combinations_with_replacement(range(numel + 1), 2):
            cut = boxes(shape, start, stop)
            covered = list(itertools.chain.from_iterable(flat_indices(shape, b) for b in cut))
            assert covered == list(range(start, stop)), (shape, start, stop)


@pytest.mark.parametrize("dims", range(1, 5))
def test_at_most_two_boxes_per_further_dimension(dims):
    most = 0
    for shape in (shape for shape in SHAPES if len(shape) == dims):
        numel = math.prod(shape)
        for start, stop in itertools.combinations_with_replacement(range(numel + 1), 2):
            most = max(most, len(boxes(shape, start, stop)))
    assert most == 2 * dims - 1


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 5), (2, 3, 2, 3)])
def test_each_box_knows_where_it_begins(shape):
    numel = math.prod(shape)
    for start, stop in itertools.combinations(range(numel + 1), 2):
        for box in boxes(shape, start, stop):
            assert flat_indices(shape, box)[0] == box.start


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 7)])
def test_a_range_outside_the_tensor_is_refused(start, stop):
    with pytest.raises(ValueError, match=r"6 elements of a tensor of shape \(2, 3\)"):
        boxes((2, 3), start, stop)
