"""In which module values stop being finite."""

import pytest
import torch
from torch import nn

from sshsdp_fsdp_runtime import fully_shard
from sshsdp_fsdp_runtime.debug import Origin, detect_nonfinite


class Spoils(nn.Module):
    """Gives inf where it is told to: in its output, or only in the gradient."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.factor = 1.0
        self.root = False

    def forward(self, x):
        y = self.linear(x) * self.factor
        return (y + (y - y.detach()).sqrt() if self.root else y).clone()


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), Spoils(), nn.Sequential(Spoils(), nn.Linear(3, 1)))


@pytest.fixture(params=["plain", "sharded"])
def module(request):
    made = model()
    return fully_shard(made, groups=["*"]) if request.param == "sharded" else made


def test_nothing_is_found_where_everything_is_finite(module):
    with detect_nonfinite(module) as detector:
        module(torch.ones(2, 3)).sum().backward()
    assert detector.first is None


def test_the_innermost_module_of_the_first_bad_output_is_named(module):
    module[1].factor = module[2][0].factor = float("inf")
    with detect_nonfinite(module) as detector:
        module(torch.ones(2, 3))
    assert detector.first == Origin("1", "output", of_input=False)
    assert str(detector.first) == "output of 1"


def test_bad_data_is_told_from_bad_modules(module):
    with detect_nonfinite(module) as detector:
        module(torch.full((2, 3), float("nan")))
    assert detector.first == Origin("0", "output", of_input=True)
    assert str(detector.first) == "output of 0, as were its inputs"


def test_a_gradient_that_is_not_finite_names_the_module_whose_output_it_is_of(module):
    module[2][0].root = True  # the root of 0 has an infinite derivative
    with detect_nonfinite(module) as detector:
        loss = module(torch.ones(2, 3)).sum()
        assert detector.first is None
        loss.backward()
    # Backward comes to the outputs of what lies before the operation.
    assert detector.first == Origin("2.0.linear", "gradient", of_input=False)


def test_no_hook_stays(module):
    with detect_nonfinite(module):
        pass
    module[1].factor = float("inf")
    with detect_nonfinite(nn.Linear(1, 1)) as detector:
        module(torch.ones(2, 3))
    assert detector.first is None
    counts = [len(each._forward_hooks) for each in model().modules()]
    plain = model()
    with detect_nonfinite(plain):
        pass
    assert [len(each._forward_hooks) for each in plain.modules()] == counts
