"""An argument of a wrong type is an error that says what to give, before anything changes."""

import pytest
import torch
from testing.models import TiedModel
from torch import nn
from torch.distributed import HashStore

from sshsdp_fsdp_runtime import Cast, ExponentialAverage, Pack, Sharding, Update, fully_shard
from sshsdp_shardchain import Degrees
from sshsdp_updates import OWN, AdamW, Muon


@pytest.mark.parametrize(
    ("given", "shown"),
    [(None, "None"), (torch.ones(3), "an object of Tensor"), (nn.Linear, "the class Linear")],
    ids=["none", "tensor", "class"],
)
def test_what_is_no_model_is_refused(given, shown):
    with pytest.raises(TypeError, match=rf"an object of nn\.Module, got {shown}; build one first"):
        fully_shard(given)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"transport": "gloo"}, r"a transport, got 'gloo'; give connect\(rank, world, store\) of"),
        ({"transport": HashStore()}, r"expected a transport, got .*HashStore"),
        (
            {"updates": Update("**", AdamW())},
            r"updates= to be a list of Update, got an object of Update; write updates=\[Update\(",
        ),
        ({"updates": [AdamW()]}, "a list of Update, got an object of AdamW in it; write updates="),
        ({"updates": AdamW()}, "a list of Update, got an object of AdamW; write updates="),
        ({"sharding": Sharding("**", Degrees(1, 1, 1))}, r"sharding= .*; write sharding=\[Shardin"),
        ({"sharding": [(1, 1, 1)]}, "a list of Sharding, got an object of tuple in it"),
        ({"packs": Pack("**", ["up", "down"])}, r"got an object of Pack; write packs=\[Pack\("),
        ({"formats": torch.bfloat16}, r"got an object of dtype; write formats=\[Cast\("),
        ({"groups": "layers.*"}, r"list of str, got 'layers\.\*'; write groups=\[\"layers\.\*\"\]"),
        ({"groups": [nn.Linear]}, "list of str, got the class Linear in it; write groups="),
        ({"ignored": "shift"}, r"list of str, got 'shift'; write ignored=\["),
        ({"ignored": [nn.Linear(1, 1).weight]}, "list of str, got an object of Parameter in it"),
    ],
)
def test_an_argument_of_another_kind_is_refused_with_an_example(arguments, text):
    model = TiedModel()
    with pytest.raises(TypeError, match=text):
        fully_shard(model, **arguments)
    assert type(model) is TiedModel


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"slots": 1.5}, r"slots to be an int of at least 1, got 1\.5; 2 is the default"),
        ({"poison": "no"}, "poison to be True or False, got 'no'"),
        ({"skip_nonfinite": None}, "skip_nonfinite to be True or False, got None"),
        ({"padding_budget": "3%"}, r"a padding budget of 0 or more, got '3%'; 0\.03 allows 3%"),
        (
            {"formats": [Cast("**", torch.float8_e4m3fn)]},
            r"dtype of 2 bytes or more in Cast\('\*\*'\), got torch\.float8_e4m3fn, ",
        ),
    ],
)
def test_a_setting_that_can_not_be_is_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        fully_shard(TiedModel(), **arguments)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Sharding("**", (2, 2, 2)), r"expected Degrees, got \(2, 2, 2\); write Degrees\(z"),
        (lambda: Sharding(Degrees(1, 1, 1), "**"), "pattern of Sharding to be text, got an object"),
        (lambda: Cast("**", "bf16"), r"a torch\.dtype, got 'bf16'; write .* torch\.bfloat16"),
        (lambda: Cast(torch.bfloat16, "**"), "pattern of Cast to be text, got an object of dtype"),
        (lambda: Pack(nn.Linear, ["a", "b"]), "pattern of Pack to be text, got the class Linear"),
        (lambda: Update(AdamW(), "**"), "pattern of Update to be text, got an object of AdamW"),
        (
            lambda: Update("**", torch.optim.AdamW),
            r"the class torch\.optim\.AdamW; .* AdamW\(\.\.\.\), .*Rule\(torch\.optim\.AdamW, ",
        ),
        (lambda: Update("**", AdamW), r"got the class AdamW; make one: AdamW\(\.\.\.\)"),
        (lambda: Update("**", "adamw"), "expected an update rule, got an object of str"),
        (lambda: Update("**", Muon(), unit=8), r"cuts a tensor, got 8; give heads\(size\)"),
        (lambda: Update("**", Muon(), unit=OWN), "cuts a tensor, got _Own"),
        (lambda: Update("**", AdamW(), "2d"), "where= to be a function of a parameter, got '2d'"),
    ],
)
def test_a_rule_is_checked_when_it_is_made(make, text):
    with pytest.raises(TypeError, match=text):
        make()


@pytest.mark.parametrize("members", ["query", ["query"], [1, 2], 3, ["query", "query"]])
def test_members_of_a_pack_are_names(members):
    with pytest.raises(ValueError, match=r"two or more different members in Pack\('x'\), got .*"):
        Pack("x", members)


def test_a_model_takes_and_averages_no_other_things():
    model = fully_shard(TiedModel())
    for decay in ("0.9", None):
        with pytest.raises(ValueError, match=r"a decay in \[0, 1\), got .*; 0\.999 is usual"):
            ExponentialAverage(model, decay)
    for load in (model.load_state_dict, model.load_full_state_dict):
        with pytest.raises(ValueError, match="a mapping of names to tensors, got int; give what f"):
            load(3)
        values = {**model.full_state_dict(), "gain": [1.0]}
        with pytest.raises(ValueError, match="full state dict of this model, got list for 'gain'"):
            load(values)
    model.close()
