"""Configuration files read back equal, and what they get wrong is named with its place."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sshsdp_fsdp_runtime.trainer.config import (
    CorpusConfig,
    DebugConfig,
    ModelConfig,
    OptimizerConfig,
    ReportConfig,
    TrainConfig,
)
from sshsdp_fsdp_runtime.trainer.configfile import format_config, read_config
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.resumption import check_resumable

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
configs = st.builds(
    TrainConfig,
    data=st.lists(texts.map(Path), max_size=3).map(tuple),
    seed=st.integers(-(2**62), 2**62),
    ranks=st.none() | st.integers(1, 9),
    name=st.none() | texts,
    model=st.builds(ModelConfig, width=st.none() | st.integers(1, 9)),
    optimizer=st.builds(OptimizerConfig, lr=st.floats(1e-300, 1e300)),
    report=st.builds(ReportConfig, sample_prompt=texts, tensorboard=st.booleans()),
    corpus=st.builds(CorpusConfig, tokenizer=st.none() | texts.map(Path)),
    debug=st.builds(DebugConfig, trace=st.sampled_from([None, "1", "7:3"]), poison=st.booleans()),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("config") / "run.toml"


@given(config=configs)
@example(config=TrainConfig(name='"\\ \x00\x7f\u2028é\n'))
def test_a_written_configuration_reads_back_equal(config, file):
    file.write_text(format_config(config), encoding="utf-8", newline="")
    assert read_config(file, TrainConfig) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3", "a known key, got 'stepz'; the nearest known key is 'steps'"),
        ("[optimizer]\nwarm_up = 3", "'optimizer.warm_up'; .* is 'optimizer.warmup_steps'"),
        ("[model]\nlr = 0.1", "got 'model.lr'; the nearest known key is 'optimizer.lr'"),
        ("warmup_steps = 3", "got 'warmup_steps'; .* is 'optimizer.warmup_steps'"),
        ("steps = 3.0", "expected steps as int, got 3.0"),
        ("steps = true", "expected steps as int, got True"),
        ("steps = 0", "expected steps >= 1, got 0"),
        ("timeout = 0.0", "expected 0 < timeout <= 1,000,000 seconds, got 0.0; use 300"),
        ("timeout = inf", "expected 0 < timeout <= 1,000,000 seconds, got inf; use 300"),
        ("timeout = nan", "expected 0 < timeout <= 1,000,000 seconds, got nan; use 300"),
        (f"seed = {2**63}", f"seed of at most 64 bits with its sign, got {2**63}"),
        (f"seed = {-(2**63) - 1}", "seed of at most 64 bits with its sign, got -"),
        ("model = 3", r"expected a table \[model\], got model = 3"),
        ("[optimizer]\nbetas = [1.0]", r"expected optimizer.betas as a list .*, got \[1.0\]"),
        ("[optimizer]\nlr = -1", "expected optimizer.lr > 0, got -1.0"),
        ("[optimizer]\nlr = nan", "expected optimizer.lr > 0, got nan"),
        ("[optimizer]\nlr = inf", "expected a finite optimizer.lr, got inf"),
        ("[optimizer]\nmuon_lr = inf", "expected a finite optimizer.muon_lr, got inf"),
        ("[optimizer]\nweight_decay = inf", "expected a finite optimizer.weight_decay, got inf"),
        ("[optimizer]\nbetas = [0.9, 1.0]", r"0 <= optimizer.betas < 1, got \(0.9, 1.0\); use"),
        ("[optimizer]\nbetas = [-0.1, 0.9]", r"0 <= optimizer.betas < 1, got \(-0.1, 0.9\)"),
        ("[optimizer]\nbetas = [0.9, nan]", r"0 <= optimizer.betas < 1, got \(0.9, nan\)"),
        ("[optimizer]\ndecay = 'exp'", "decay as one of 'cosine', 'linear', 'constant', got 'exp'"),
        ("[debug]\ntrace = '3-4'", "debug.trace as STEP or STEP:STEPS, got '3-4'; use 3:2"),
        ("[debug]\ntrace = '0'", "debug.trace within the steps 1 to 1200 of the run, got '0'"),
        ("[debug]\ntrace = '3:0'", "debug.trace within the steps 1 to 1200 of the run, got '3:0'"),
        ("steps = 4\n[debug]\ntrace = '3:3'", "steps 1 to 4 of the run, got '3:3'; use 3"),
        ("steps = ", "expected a TOML file, got .*run.toml"),
        ('data = [""]', "expected data as a string .a path; . is the current folder., got ''"),
    ],
)
def test_a_bad_file_is_refused_by_place_and_remedy(file, text, message):
    file.write_text(text)
    with pytest.raises(InputError, match=f"(?s)run.toml.*{message}|{message}"):
        read_config(file, TrainConfig)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"got .*absent.toml, which does not exist"):
        read_config(tmp_path / "absent.toml", TrainConfig)


def test_a_size_has_a_name_and_fields_of_its_own():
    shape = ModelConfig(size="small", layers=3).shape(vocab=256, context=64)
    assert (shape.layers, shape.width, shape.context) == (3, 384, 64)
    with pytest.raises(InputError, match="out of nano, tiny, small, medium, tiny-moe, got 'huge'"):
        ModelConfig(size="huge").shape(vocab=256, context=64)
    with pytest.raises(InputError, match=r"\[model\] expected kv_heads to divide heads=6, got 4"):
        ModelConfig(kv_heads=4).shape(vocab=256, context=64)


def test_a_size_may_have_experts():
    shape = ModelConfig(size="tiny-moe", active=3).shape(vocab=256, context=64)
    assert (shape.experts, shape.active, shape.hidden) == (8, 3, 256)
    shape = ModelConfig(size="nano", experts=4, active=2).shape(vocab=256, context=64)
    assert (shape.experts, shape.active, shape.hidden) == (4, 2, 160)
    with pytest.raises(InputError, match=r"\[model\] expected 1 <= active <= experts = 4"):
        ModelConfig(experts=4, active=5).shape(vocab=256, context=64)


def test_steps_to_trace_are_counted_from_one():
    def window(trace):
        return TrainConfig(steps=9, debug=DebugConfig(trace=trace)).trace_window

    assert window(None) is None
    assert (window("4").first, window("4").last) == (4, 4)
    assert (window("8:2").first, window("8:2").last) == (8, 9)


def test_ranks_divide_the_batch_and_have_one_thread():
    assert TrainConfig(batch=8).with_ranks(4).ranks == 4
    with pytest.raises(InputError, match="a batch that 3 ranks divide, got 8; use 9"):
        TrainConfig(batch=8).with_ranks(3)
    with pytest.raises(InputError, match="threads = 1 for 2 ranks, got 2"):
        TrainConfig(threads=2).with_ranks(2)


def test_threads_that_no_machine_has_are_refused():
    assert TrainConfig(threads=64).with_ranks(1).threads == 64
    with pytest.raises(InputError, match=r"threads <= \d+, got 100000; use as many as .* cores"):
        TrainConfig(threads=100_000).with_ranks(1)


def test_nodes_share_the_ranks_evenly():
    assert TrainConfig(nodes=2).with_ranks(4).nodes == 2
    with pytest.raises(InputError, match="nodes that share 8 ranks evenly, got 6; use 2, or 12"):
        TrainConfig(nodes=6).with_ranks(8)


def test_a_resumed_run_may_change_how_it_runs_but_not_what_it_is():
    saved = TrainConfig()
    check_resumable(saved, replace(saved, ranks=4, steps=2000, microbatch=1, threads=1))
    with pytest.raises(InputError, match=r"expected seed as the run was started \(0\), got 1"):
        check_resumable(saved, replace(saved, seed=1))


def test_what_a_resumed_run_would_change_is_named_field_by_field():
    saved = TrainConfig(data=(Path("a"), Path("b")))
    optimizer = replace(saved.optimizer, name="adamw", lr=0.5)
    with pytest.raises(InputError) as caught:
        check_resumable(saved, replace(saved, data=(), batch=16, optimizer=optimizer))
    assert str(caught.value) == (
        "expected data as the run was started (a b), got none, and batch (8), got 16, and"
        " optimizer.name (muon), got adamw, and optimizer.lr (0.001), got 0.5; drop the options, or"
        " start a new run"
    )


@pytest.mark.parametrize(
    ("change", "got"), [({"name": "b"}, "--name, got b"), ({"runs": Path("x")}, "--runs, got x")]
)
def test_a_resumed_run_stays_in_its_folder(change, got):
    saved = TrainConfig(name="a")
    with pytest.raises(InputError, match=f"--resume without {got}: a run goes on .*; drop the opt"):
        check_resumable(saved, replace(saved, **change))
