"""Rules on the command line mean what the same rules mean in Python."""

import pytest
import torch

from sshsdp_fsdp_runtime import Cast, Sharding, Update
from sshsdp_fsdp_runtime.trainer import InputError
from sshsdp_fsdp_runtime.trainer.planning.rule_text import (
    parse_cast,
    parse_degrees,
    parse_sharding,
    parse_update,
)
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW


def test_rules_read_like_their_python_forms():
    assert parse_sharding("layers.**=2,4,8") == Sharding("layers.**", Degrees(2, 4, 8))
    assert parse_sharding("4") == Sharding("**", Degrees(4, 4, 4))
    assert parse_cast("**.weight=bf16") == Cast("**.weight", torch.bfloat16)
    assert parse_cast("float16") == Cast("**", torch.float16)
    assert parse_update("AdamW") == Update("**", AdamW())
    assert parse_update("a.*=sgd(momentum=0.9, lr=1e-2)") == Update("a.*", SGD(0.01, 0.9))
    assert parse_update("adamw(betas=(0.9, 0.95))") == Update("**", AdamW(betas=(0.9, 0.95)))


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_sharding, "a=1,2", "expected degrees as zero3,zero2,zero1, got '1,2'; 8,8,64"),
        (parse_sharding, "a=x", "got 'x'"),
        (parse_sharding, "a=3,4,8", "each degree to divide the next"),
        (parse_sharding, "=1", "expected pattern=value, got '=1'"),
        (parse_sharding, "a=", "expected pattern=value, got 'a='"),
        (parse_cast, "a=bf17", "--cast: expected the name of a dtype, got 'bf17'"),
        (parse_update, "lamb", "expected one of adamw, .*sgd.*, got 'lamb'"),
        (parse_update, "sgd(momentum=0.9", r"got 'sgd\(momentum=0.9'"),
        (parse_update, "sgd(0.9)", "expected arguments by name"),
        (parse_update, "sgd(momentun=0.9)", "unexpected keyword argument 'momentun'"),
        (parse_update, "sgd(lr=open('x'))", "malformed node"),
        (parse_update, "sgd(lr=,)", "invalid syntax"),
    ],
)
def test_a_bad_rule_is_refused_by_option(parse, text, message):
    with pytest.raises(InputError, match=message):
        parse(text)


def test_degrees_that_do_not_nest_name_degrees_that_do():
    with pytest.raises(InputError, match=r"use Degrees\(zero3=2, zero2=4, zero1=8\)"):
        parse_degrees("3,4,8", "--degrees")
