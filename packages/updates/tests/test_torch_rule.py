"""Classes of torch.optim run over fragments and give the bits that they give on whole tensors."""

import copy

import pytest
import torch
from torch import optim

from sshsdp_updates import SGD, TorchRule, check_rule

CLASSES = {
    "adadelta": (optim.Adadelta, {"lr": 0.5, "weight_decay": 0.1}),
    "adagrad": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.3}),
    "adam": (optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}),
    "adamax": (optim.Adamax, {"lr": 0.1}),
    "adamw": (optim.AdamW, {"lr": 0.1, "maximize": True}),
    "asgd": (optim.ASGD, {"lr": 0.1, "t0": 2.0, "lambd": 0.01}),
    "nadam": (optim.NAdam, {"lr": 0.1, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    "radam": (optim.RAdam, {"lr": 0.1, "foreach": True}),
    "rmsprop": (optim.RMSprop, {"lr": 0.1, "centered": True, "momentum": 0.5}),
    "rprop": (optim.Rprop, {"lr": 0.1}),
    "sgd": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "sgd_plain": (optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
}
each_class = pytest.mark.parametrize("case", CLASSES)
SIZES = {"matrix": 35, "scalar": 1, "vector": 9, "nothing": 0}
STEPS = 7


def gradients_of(step):
    """Of one step; some tensors have none in some steps, and one never has any."""
    random = torch.Generator().manual_seed(step)
    values = {n: torch.randn(s, generator=random, dtype=torch.float64) for n, s in SIZES.items()}
    missing = {1: ["vector"], 3: ["matrix", "nothing"], 4: ["scalar"]}.get(step, [])
    return {name: None if name in missing else value for name, value in values.items()}


def start():
    random = torch.Generator().manual_seed(99)
    return {n: torch.randn(s, generator=random, dtype=torch.float64) for n, s in SIZES.items()}


def train(ours, theirs, whole, steps):
    for step in steps:
        gradients = gradients_of(step)
        ours.set_gradients(gradients, SIZES)
        ours.run(lambda optimizer: optimizer.step())
        for name, parameter in whole.items():
            parameter.grad = gradients[name]
        theirs.step()


def assert_equal(ours, theirs, whole):
    for name, parameter in whole.items():
        assert torch.equal(ours.weight(name, SIZES[name]), parameter.detach()), name
        states = [o.state_dict()["state"][name] for o in ours.optimizers[: ours.zero1]]
        for field, value in theirs.state.get(parameter, {}).items():
            if value is None:
                continue
            pieces = [state[field] for state in states]
            if value.dim():
                pieces = [torch.cat(pieces)]
            for piece in pieces:
                assert torch.equal(piece, value.to(piece.dtype)), (name, field)


def both(cluster, case, world=1, **options):
    kind, arguments = CLASSES[case]
    whole = {name: torch.nn.Parameter(value) for name, value in start().items()}
    theirs = kind(list(whole.values()), **arguments)
    rule = TorchRule(kind, **arguments)
    return cluster([(rule, start())], world=world, **options), theirs, whole


@each_class
@pytest.mark.parametrize(("world", "zero1"), [(1, 1), (3, 3), (4, 2)])
def test_weights_and_state_have_the_bits_of_the_class_on_whole_tensors(cluster, case, world, zero1):
    ours, theirs, whole = both(cluster, case, world, zero1=zero1)
    train(ours, theirs, whole, range(STEPS))
    assert_equal(ours, theirs, whole)
    assert ours.padding_is_untouched()


@each_class
def test_no_cut_changes_a_bit_in_single_precision(case):
    kind, arguments = CLASSES[case]
    check_rule(TorchRule(kind, **arguments), steps=3)


@each_class
def test_state_goes_to_torch_and_back_under_its_names(cluster, case):
    ours, theirs, whole = both(cluster, case)
    train(ours, theirs, whole, range(3))
    saved = copy.deepcopy(ours.optimizers[0].state_dict())
    (group,) = saved["param_groups"]
    assert group["rule"] == f"torch.optim.{type(theirs).__name__}"
    assert {key: group[key] for key in theirs.defaults} == theirs.defaults
    # torch takes the state as it is.
    other = {name: torch.nn.Parameter(p.detach().clone()) for name, p in whole.items()}
    torchs = type(theirs)(list(other.values()), **CLASSES[case][1])
    state = {
        index: {k: v.clone() for k, v in saved["state"][name].items() if k in kept}
        for index, name in enumerate(other)
        if (kept := theirs.state.get(whole[name], {}))
    }
    torchs.load_state_dict({"state": state, "param_groups": theirs.state_dict()["param_groups"]})
    # And so do we, in another optimizer whose state was something else.
    again, unlike, others = both(cluster, case)
    train(again, unlike, others, range(20, 22))
    for name in whole:
        again.scatter("main_weight", name, whole[name].detach())
    again.optimizers[0].load_state_dict(saved)
    train(again, theirs, whole, range(3, STEPS))
    assert_equal(again, theirs, whole)
    for step in range(3, STEPS):
        for name, parameter in other.items():
            parameter.grad = gradients_of(step)[name]
        torchs.step()
    for name, parameter in other.items():  # torch has cast single numbers to the weights' dtype
        torch.testing.assert_close(parameter, whole[name], rtol=1e-6, atol=1e-7)


@each_class
def test_a_skipped_step_leaves_every_bit_as_it_was(cluster, case):
    ours, theirs, whole = both(cluster, case, world=2)
    train(ours, theirs, whole, range(2))
    before = [copy.deepcopy(optimizer.state_dict()) for optimizer in ours.optimizers]
    gradients = gradients_of(2)
    gradients["matrix"][-1] = torch.inf
    ours.set_gradients(gradients, SIZES)
    ours.run(lambda optimizer: optimizer.step())
    for optimizer, saved in zip(ours.optimizers, before, strict=True):
        assert optimizer.last_step_skipped
        for name, fields in saved["state"].items():
            for field, value in optimizer.state_dict()["state"][name].items():
                assert torch.equal(value, fields[field]), (name, field)
    train(ours, theirs, whole, range(2, STEPS))
    assert_equal(ours, theirs, whole)


@each_class
def test_schedules_and_edited_groups_reach_the_class(cluster, case):
    ours, theirs, whole = both(cluster, case, world=2)
    for step in range(STEPS):
        train(ours, theirs, whole, [step])
        for group in (*(o.param_groups[0] for o in ours.optimizers), theirs.param_groups[0]):
            group["lr"] *= 0.5
            if group.get("weight_decay"):
                group["weight_decay"] *= 2
            if "betas" in group:
                group["betas"] = (0.5, 0.9 + step / 100)
    assert_equal(ours, theirs, whole)


def test_what_schedulers_look_for_is_in_the_defaults(cluster):
    ours, theirs, whole = both(cluster, "nadam")
    rates = []
    for optimizer in (ours.optimizers[0], theirs):
        schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=STEPS)
        rates.append(schedule)
    for step in range(STEPS - 1):
        train(ours, theirs, whole, [step])
        for schedule in rates:
            schedule.step()
    assert_equal(ours, theirs, whole)


@pytest.mark.parametrize("kind", [optim.Adafactor, optim.LBFGS, optim.SparseAdam, optim.Muon])
def test_classes_that_need_more_than_an_element_are_refused_by_name(kind):
    with pytest.raises(TypeError, match=rf"element on its own, got torch\.optim\.{kind.__name__} "):
        TorchRule(kind)


class Trust(optim.SGD):
    """Divides by the norm of a tensor: wrong on a fragment, and no error."""

    def step(self, closure=None):  # noqa: ARG002
        for parameter in self.param_groups[0]["params"]:
            parameter.data.sub_(parameter.grad / parameter.grad.norm())


class Guessing(optim.SGD):
    """Adds noise, which no two ranks agree about."""

    def step(self, closure=None):  # noqa: ARG002
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(torch.rand_like(parameter))


class Sized(optim.SGD):
    """Keeps a number that depends on how many elements there are."""

    def step(self, closure=None):  # noqa: ARG002
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["size"] = torch.tensor(float(parameter.numel()))


@pytest.mark.parametrize(
    ("kind", "what"), [(Trust, "weights"), (Guessing, "weights"), (Sized, "size")]
)
def test_classes_that_would_be_silently_wrong_on_fragments_are_refused(kind, what):
    with pytest.raises(TypeError, match=rf"{kind.__name__} \(other {what} where a tensor is cut\)"):
        TorchRule(kind, lr=0.1)


class Counting(optim.Optimizer):
    """As many classes outside torch: a plain number of steps, state made at the first one."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):  # noqa: ARG002
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["step"], state["sum"] = 0, torch.full_like(parameter, 0.25)
            state["step"] += 1
            state["sum"] = state["sum"] + parameter.grad  # bound anew, not changed in place
            rate = self.param_groups[0]["lr"] / state["step"]
            parameter.data.sub_(rate * state["sum"])


def test_a_class_of_ones_own_counts_its_steps_and_may_bind_its_state_anew(cluster):
    whole = {name: torch.nn.Parameter(value) for name, value in start().items()}
    ours = cluster([(TorchRule(Counting, lr=0.3), start())], world=2)
    theirs = Counting(list(whole.values()), lr=0.3)
    train(ours, theirs, whole, range(STEPS))
    for name, parameter in whole.items():
        assert torch.equal(ours.weight(name, SIZES[name]), parameter.detach()), name
    assert ours.optimizers[0].param_groups[0]["rule"].endswith("test_torch_rule.Counting")


@pytest.mark.parametrize("option", ["differentiable", "capturable"])
def test_options_that_need_a_graph_are_refused(option):
    with pytest.raises(TypeError, match=rf"torch\.optim\.Adam with {option}=False, got True"):
        TorchRule(optim.Adam, **{option: True})


def test_options_that_a_class_has_not_are_its_own_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'momentun'"):
        TorchRule(optim.RMSprop, momentun=0.9)
    with pytest.raises(ValueError, match=r"Invalid learning rate: -1"):
        TorchRule(optim.RAdam, lr=-1)


def test_illegal_values_in_a_group_are_found_before_anything_changes(cluster):
    ours, theirs, whole = both(cluster, "radam")
    train(ours, theirs, whole, range(2))
    group = ours.optimizers[0].param_groups[0]
    group["betas"] = (0.9, 1.5)
    with pytest.raises(ValueError, match=r"of torch\.optim\.RAdam, got Invalid beta"):
        ours.optimizers[0].step()
    assert_equal(ours, theirs, whole)


def test_a_group_can_not_be_switched_to_state_that_is_not_there(cluster):
    ours, theirs, whole = both(cluster, "sgd_plain")
    train(ours, theirs, whole, range(2))
    ours.optimizers[0].param_groups[0]["momentum"] = 0.9
    with pytest.raises(
        ValueError, match=r"keep \[\], got \['momentum_buffer'\] by a change of mom"
    ):
        ours.optimizers[0].step()
    assert_equal(ours, theirs, whole)
    ours.optimizers[0].param_groups[0].update({"momentum": 0, "weight_decay": 0})
    ours.optimizers[0].step()


def test_equal_rules_are_two_groups_and_a_plan_names_every_option():
    first, second = TorchRule(optim.SGD, lr=0.1), TorchRule(optim.SGD, lr=0.1)
    assert first != second
    assert repr(first) == repr(second)
    assert repr(TorchRule(optim.SGD, lr=0.1, nesterov=True, momentum=0.5)) != repr(first)
    assert repr(first).startswith("TorchRule(torch.optim.SGD, lr=0.1, momentum=0,")


def test_it_stands_beside_rules_of_this_package(cluster):
    values = {"a": torch.ones(5), "b": torch.ones(5)}
    rule = TorchRule(optim.SGD, lr=0.1, momentum=0.5)
    ours = cluster([(rule, {"a": values["a"]}), (SGD(0.1, 0.5), {"b": values["b"]})], world=2)
    for _ in range(3):
        ours.set_gradients({"a": torch.arange(5.0), "b": torch.arange(5.0)}, {"a": 5, "b": 5})
        ours.run(lambda optimizer: optimizer.step())
    torch.testing.assert_close(ours.weight("a", 5), ours.weight("b", 5))
