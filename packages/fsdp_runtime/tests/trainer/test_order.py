"""The order of the data is a pure function that visits every window once per epoch."""

from hypothesis import given
from hypothesis import strategies as st

from sshsdp_fsdp_runtime.trainer.order import Order

orders = st.builds(
    Order,
    seed=st.integers(-5, 2**40),
    tokens=st.integers(200, 3000),
    context=st.integers(1, 40),
    batch=st.integers(1, 7),
)


@given(orders, st.integers(0, 3))
def test_an_epoch_visits_every_window_once(order, epoch):
    places = range(epoch * order.windows, (epoch + 1) * order.windows)
    starts = [order.start(*divmod(place, order.batch)) for place in places]
    assert len({start % order.context for start in starts}) == 1
    assert len({start // order.context for start in starts}) == order.windows


@given(orders, st.integers(0, 10**6))
def test_windows_and_their_last_target_lie_inside(order, step):
    for index in range(order.batch):
        start = order.start(step, index)
        assert start >= 0
        assert start + order.context + 1 <= order.tokens


@given(orders, st.integers(0, 10**6))
def test_nothing_but_seed_step_and_index_matters(order, step):
    again = Order(order.seed, order.tokens, order.context, order.batch)
    later_first = [again.start(step + 1, 0), again.start(step, order.batch - 1)][1]
    assert later_first == order.start(step, order.batch - 1)


def test_seeds_and_epochs_have_orders_of_their_own():
    def epoch(seed, number):
        order = Order(seed, 1000, 10, 1)
        first = number * order.windows
        return [order.start(first + place, 0) // 10 for place in range(order.windows)]

    assert epoch(0, 0) != epoch(1, 0)
    assert epoch(0, 0) != epoch(0, 1)
    assert epoch(0, 0) != sorted(epoch(0, 0))


def test_the_order_of_this_version_stays_as_it_is():
    """A resumed run of an older version must see the same data: literal values."""
    order = Order(seed=7, tokens=100_000, context=64, batch=4)
    starts = [order.start(step, index) for step in (0, 500) for index in range(4)]
    assert starts == [37208, 17496, 15256, 41304, 86789, 16837, 48901, 8325]
