"""Rules on the command line mean what the same rules mean in Python."""

import sys

import pytest
import torch

from sshsdp_fsdp_runtime import Cast, Pack, Sharding, Update, is_matrix
from sshsdp_fsdp_runtime.trainer import InputError
from sshsdp_fsdp_runtime.trainer.planning.rule_text import (
    parse_cast,
    parse_degrees,
    parse_pack,
    parse_sharding,
    parse_update,
)
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW, Muon, columns, heads

# What Python itself says, by its version.
PROPOSAL = r"\. Did you mean 'momentum'\?" if sys.version_info >= (3, 13) else ""
NO_VALUE = "expected argument value expression" if sys.version_info >= (3, 12) else "invalid syntax"


def test_rules_read_like_their_python_forms():
    assert parse_sharding("layers.**=2,4,8") == Sharding("layers.**", Degrees(2, 4, 8))
    assert parse_sharding("4") == Sharding("**", Degrees(4, 4, 4))
    assert parse_cast("**.weight=bf16") == Cast("**.weight", torch.bfloat16)
    assert parse_cast("float16") == Cast("**", torch.float16)
    assert parse_pack("a.*=q, k") == Pack("a.*", ["q", "k"])
    assert parse_update("AdamW") == Update("**", AdamW())
    assert parse_update("a.*=sgd(momentum=0.9, lr=1e-2)") == Update("a.*", SGD(0.01, 0.9))
    assert parse_update("adamw(betas=(0.9, 0.95))") == Update("**", AdamW(betas=(0.9, 0.95)))


def test_a_rule_for_matrices_claims_matrices_and_works_on_the_unit_given():
    assert parse_update("a.**=muon") == Update("a.**", Muon(), is_matrix)
    made = parse_update("**.q_proj.weight=Muon(lr=0.02)@heads(128)")
    assert (made.rule, made.where) == (Muon(lr=0.02), is_matrix)
    assert made.unit is not None
    assert made.unit.name == heads(128).name
    assert parse_update("muon@columns(size=[3, 5])").unit.name == columns((3, 5)).name


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_pack, "q,k", "expected pattern=member,member, got 'q,k'; 'layers"),
        (parse_pack, "a=q", "--packs a=q: expected two or more different members"),
        (parse_sharding, "a=1,2", "expected degrees as zero3,zero2,zero1, got '1,2'; 8,8,64"),
        (parse_sharding, "a=x", "got 'x'"),
        (parse_sharding, "a=3,4,8", "each degree to divide the next"),
        (parse_sharding, "=1", "expected pattern=value, got '=1'"),
        (parse_sharding, "a=", "expected pattern=value, got 'a='"),
        (parse_cast, "a=bf17", "--cast: expected the name of a dtype, got 'bf17'"),
        (parse_update, "lamb", "one of the rules adamw, .*sgd.*, got 'lamb'; .*muon@heads"),
        (parse_update, "muon@head(3)", "one of the units columns, .*whole.*, got 'head.3.'"),
        (
            parse_update,
            "muon@heads",
            "missing 1 required positional argument: 'size'; heads takes size",
        ),
        (parse_update, "muon@heads(0)", "expected units of 1 or more rows or columns, got 0"),
        (parse_update, "sgd(momentum=0.9", r"got 'sgd\(momentum=0.9'"),
        (parse_update, "sgd(0.9)", "expected arguments by name"),
        (
            parse_update,
            "sgd(momentun=0.9)",
            f"unexpected keyword argument 'momentun'{PROPOSAL}; SGD takes lr, mo",
        ),
        (parse_update, "sgd(lr=open('x'))", r"quoted texts, .*, got open\('x'\); write out its"),
        (parse_update, "**=muon@heads(x)", r"heads\(x\): expected numbers, .*, got x; write out"),
        (parse_update, "sgd(*[1])", r"expected numbers, .* as arguments, got \*\[1\]; write out"),
        (parse_update, "sgd(**{'lr': 1})", r"argument '\*\*'; SGD takes lr, momentum"),
        (parse_update, "sgd(lr=,)", rf"as in sgd\(1, name=2\), got {NO_VALUE}"),
        (parse_update, "sgd(lr=1)+(2)", r"one rule and its arguments, got 'sgd\(lr=1\)\+\(2\)'"),
        (parse_update, "sgd(lr=1)(2)", r"one rule and its arguments, got 'sgd\(lr=1\)\(2\)'"),
    ],
)
def test_a_bad_rule_is_refused_by_option(parse, text, message):
    with pytest.raises(InputError, match=message):
        parse(text)


def test_degrees_that_do_not_nest_name_degrees_that_do():
    with pytest.raises(InputError, match=r"use Degrees\(zero3=2, zero2=4, zero1=8\)"):
        parse_degrees("3,4,8", "--degrees")
