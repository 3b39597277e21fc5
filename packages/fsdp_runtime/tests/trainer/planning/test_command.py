"""`sshsdp plan` shows the plan's own numbers, and refuses in one line that says what would do."""

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch

from sshsdp_fsdp_runtime.plan import ModelSpec, ScheduleBook, build_plan
from sshsdp_fsdp_runtime.plan.traffic import step_traffic
from sshsdp_fsdp_runtime.trainer import InputError, main
from sshsdp_fsdp_runtime.trainer.config import ModelConfig, TrainConfig
from sshsdp_fsdp_runtime.trainer.model import Decoder
from sshsdp_fsdp_runtime.trainer.planning import PlanRequest, make_plan
from sshsdp_fsdp_runtime.trainer.planning.request import request_topology
from sshsdp_fsdp_runtime.trainer.planning.sections.text import nbytes_text
from sshsdp_fsdp_runtime.trainer.recipe import decoder_packs, decoder_updates
from sshsdp_shardchain import Level
from sshsdp_zerosm import Topology

MOE = """
dtype = "bfloat16"
[parameters]
"embed.weight" = [64, 16]
"layers.{6}.norm" = [16]
"layers.{6}.experts.{4}.up" = [32, 16]
"layers.{6}.experts.{4}.down" = [16, 32]
"layers.{2}.gate" = { shape = [4, 16], dtype = "float32" }
"head.weight" = { shape = [64, 16], frozen = true }
"""
RANKS = ["--nodes", "2", "--ranks-per-node", "4", "--degrees", "2,4,8", "--form", "private"]


def planned(model):
    """What RANKS ask for."""
    return PlanRequest(model=model, nodes=2, ranks_per_node=4, degrees="2,4,8", form="private")


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "moe.toml"
    file.write_text(MOE)
    return str(file)


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")


def run_json(capsys, *arguments):
    assert main(["plan", *arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_holds_the_numbers_of_the_plan(model, capsys):
    shown = run_json(capsys, model, *RANKS, "--rank", "3")
    plan = make_plan(planned(model))
    assert shown["signature"] == plan.signature()
    assert shown["topology"] == {"world": 8, "nodes": 2, "ranks_per_node": 4}
    assert [(r["role"], r["local"], r["shared"]) for r in shown["memory"]["rows"]] == [
        (row.role, row.local, row.shared) for row in plan.forecast().rows
    ]
    assert shown["memory"]["rank_bytes"] == plan.forecast().total_bytes(3)
    members = {m["name"]: m for g in shown["groups"] for a in g["atoms"] for m in a["members"]}
    for atom in plan.atoms:
        for parameter in atom.parameters:
            placement = atom.layout.placement(parameter.name)
            shown_member = members.pop(parameter.name)
            assert (shown_member["offset"], shown_member["elements"]) == (
                placement.offset,
                placement.numel,
            )
    assert not members


def test_json_says_what_the_rank_holds(model, capsys):
    shown = run_json(capsys, model, *RANKS, "--rank", "3")
    plan = make_plan(planned(model))
    ranges = [a["ranges"] for g in shown["groups"] for a in g["atoms"]]
    for atom, levels in zip(plan.atoms, ranges, strict=True):
        for level in Level:
            held = atom.layout.chain.range(level, 3)
            assert levels[level.value] == {"start": held.start, "stop": held.stop}
    zero1 = next(row for row in shown["chains"] if row["level"] == "zero1")
    assert zero1["owners"] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert zero1["group"] == [3, 7]
    assert (zero1["nodes"], zero1["replicas"]) == (2, 1)


def test_tables_show_the_numbers_of_the_plan(model, capsys, wide):
    assert main(["plan", model, *RANKS]) == 0
    text = capsys.readouterr().out
    plan = make_plan(planned(model))
    for row in plan.forecast().rows:
        assert re.search(rf"{row.role} +{nbytes_text(row.local)} +{nbytes_text(row.shared)}", text)
    assert nbytes_text(plan.forecast().total_bytes(0)) in text
    assert plan.signature()[:16] in text
    assert "8 ranks: 2 x 4" in text


def test_layers_that_are_alike_are_one_line_with_a_count(model, capsys, wide):
    assert main(["plan", model, *RANKS]) == 0
    text = capsys.readouterr().out
    assert re.search(r"layers\.\{2:6\} +4 +9 tensors over 2,4,8, ", text)
    assert "layers.{6}.experts.{4}.up" in text
    assert not re.search(r"layers\.3", text)


def test_json_holds_the_traffic_and_on_request_every_operation(model, capsys):
    shown = run_json(capsys, model, *RANKS, "--microbatches", "3", "--schedules", "--rank", "5")
    plan = make_plan(planned(model))
    assert shown["traffic"]["rows"] == [asdict(row) for row in step_traffic(plan, 5, 3)]
    gather = ScheduleBook(plan).gather(plan.groups[2])
    (phase,) = [
        row["operations"]
        for row in shown["schedules"]
        if (row["purpose"], row["owner"]) == ("gather weights", "layers.2")
    ]
    assert phase == [str(op) for op in gather.ops("gather", 5)]


def test_rules_on_units_say_what_is_cut_and_what_moves(model, capsys):
    options = ["--optimizer", "**.experts.**=muon@heads(8)", "adamw"]
    shown = run_json(capsys, model, *RANKS, *options)
    plan = make_plan(replace(planned(model), optimizer=tuple(options[1:])))
    muon = next(row for row in shown["updates"] if row["rule"] == "muon")
    made = next(made for made in plan.update_plans if made.rule.name == "muon")
    assert muon["units"] == ["heads(8)"]
    assert muon["tensors"] == 48
    assert muon["pieces"] == 24 * 4 + 24 * 2  # 32 and 16 rows
    assert (muon["moved"], muon["least"]) == made.moved()
    assert muon["reserved"] == made.nbytes
    assert "update temporaries" in {row["role"] for row in shown["memory"]["rows"]}


def test_packs_say_which_bytes_of_a_list_are_one_operand(capsys, wide):
    options = ["tiny", "--packs", "layers.*.attention=q_proj,k_proj,v_proj", "--cast", "bf16"]
    [row] = run_json(capsys, *options)["packs"]
    names = [f"layers.0.attention.{name}_proj.weight" for name in "qkv"]
    assert (row["groups"], row["count"], row["names"]) == (["layers.{4}"], 4, names)
    assert (row["rows"], row["columns"]) == ([192, 64, 64], 192)
    plan = make_plan(PlanRequest(model="tiny", packs=(options[2],), cast=("bf16",)))
    [atom] = [atom for atom in plan.atoms if atom.name == row["atom"]]
    assert row["offsets"] == [2 * atom.layout.placement(name).offset for name in names]
    assert row["nbytes"] == [2 * 192 * rows for rows in (192, 64, 64)]
    ends = [offset + nbytes for offset, nbytes in zip(row["offsets"], row["nbytes"], strict=True)]
    assert ends[:-1] == row["offsets"][1:]
    assert main(["plan", *options]) == 0
    assert "packs: layers that are computed as one" in capsys.readouterr().out
    assert main(["plan", "tiny", "--optimizer", "adamw"]) == 0
    assert "packs" not in capsys.readouterr().out


def test_schedules_are_listed_on_request_only(model, capsys, wide):
    assert main(["plan", model, *RANKS, "--schedules"]) == 0
    text = capsys.readouterr().out
    assert "gather weights of layers.2, 4 alike, 2 times a step" in text
    assert "put shards[0]" in text
    assert "... " in text
    assert main(["plan", model, *RANKS]) == 0
    text = capsys.readouterr().out
    assert "put shards" not in text
    assert re.search(r"gather updated shards +1 ", text)


def test_exchanges_of_units_are_a_part_of_the_step(capsys):
    options = ["tiny", "--world", "3", "--optimizer", "layers.**=muon", "adamw"]
    shown = run_json(capsys, *options, "--schedules", "--rank", "1")
    [row] = [r for r in shown["traffic"]["rows"] if r["purpose"] == "exchange units of updates"]
    phases = [s for s in shown["schedules"] if s["purpose"] == row["purpose"]]
    assert len(phases) == 2 * row["runs"]
    pulls = [op for phase in phases for op in phase["operations"] if op.startswith("pull")]
    assert len(pulls) == row["messages_within"] > 0
    assert all(phase["owner"].startswith("muon, wave ") for phase in phases)


def test_every_parameter_is_claimed_once_per_kind_of_rule(model, capsys):
    shown = run_json(
        capsys, model, *RANKS, "--sharding", "layers.**=1,2,2", "--cast", "head.*=fp64"
    )
    for kind in ("sharding", "format", "update"):
        rows = [row for row in shown["claims"] if row["kind"] == kind]
        assert sum(row["tensors"] for row in rows) == shown["model"]["tensors"]
        assert sum(row["elements"] for row in rows) == shown["model"]["elements"]
        for row in rows:
            assert sum(fold["count"] for fold in row["names"]) == row["tensors"]
    decisions = {(row["kind"], row["decision"]) for row in shown["claims"]}
    assert ("sharding", "zero3,zero2,zero1 = 1,2,2") in decisions
    assert ("format", "compute in float64") in decisions
    assert ("update", "frozen") in decisions


def test_fields_hang_below_the_field_whose_bytes_they_share(model, capsys):
    fields = run_json(capsys, model, *RANKS)["fields"]
    inside = {(f["atom"], f["field"]): f["inside"] for f in fields}
    assert inside["layers.0#0", "own"] == "shard"
    assert inside["layers.0#0", "shard"] is None
    assert inside["layers.0#0", "main_grad"] is None
    same = run_json(capsys, model, "--world", "4", "--degrees", "1,4,4")["fields"]
    inside = {(f["atom"], f["field"]): f["inside"] for f in same}
    assert inside["layers.0#0", "own"] == "shard"
    assert inside["layers.0#0", "shard"] == "weights"
    assert inside["layers.0#0", "main_grad"] == "accumulator"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--world", "4", "--degrees", "3"], "use Degrees(zero3=2, zero2=2, zero1=2), or 6 ranks"),
        (["--world", "8", "--degrees", "2,3,4"], "use Degrees(zero3=2, zero2=2, zero1=4)"),
        (
            ["--nodes", "2", "--degrees", "2", "--form", "shared"],
            "use form='auto', or zero3=1 (as options: --form",
        ),
        (["--sharding", "layers.**=1"], "(as options: --sharding PATTERN=Z3,Z2,Z1, and --degrees"),
        (["--optimizer", "layers.**=sgd"], "(as options: --optimizer PATTERN=RULE)"),
        (["--cast", "int32"], "(as options: --cast PATTERN=DTYPE)"),
        (["--packs", "layers.*=up,gate"], "(as options: --packs PATTERN=MEMBER,MEMBER)"),
        (["--groups", "layer.*"], "got 'layer.*' that matches none"),
        (["--slots", "0"], "expected slots to be an int of at least 1, got 0; 2 is the default"),
        (["--microbatches", "0"], "expected --microbatches >= 1, got 0"),
        (["--rank", "1"], "expected --rank below 1, got 1"),
        (["--json", "/absent/x.json"], "got /absent/x.json: "),
        (["--picture", "x.jpg"], "expected --picture as a .pdf, .png, .svg file, got x.jpg"),
    ],
)
def test_a_refused_plan_is_one_line_that_names_what_is_accepted(model, capsys, options, text):
    assert main(["plan", model, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert text in error


def test_what_a_refusal_names_is_accepted(model, capsys):
    for degrees in ("2,2,2", "2,2,4"):
        assert main(["plan", model, "--world", "4", "--degrees", degrees]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("numbers", "topology"),
    [
        ({}, Topology(1, 1)),
        ({"world": 6}, Topology(1, 6)),
        ({"world": 6, "nodes": 3}, Topology(3, 2)),
        ({"nodes": 3}, Topology(3, 1)),
        ({"nodes": 3, "ranks_per_node": 2}, Topology(3, 2)),
        ({"ranks_per_node": 4}, Topology(1, 4)),
        ({"world": 6, "nodes": 3, "ranks_per_node": 2}, Topology(3, 2)),
    ],
)
def test_ranks_are_given_by_any_two_of_three_numbers(numbers, topology):
    assert request_topology(PlanRequest(model="tiny", **numbers)) == topology


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"world": 7, "nodes": 3}, "a multiple of --nodes 3, got 7; use 6"),
        ({"world": 1, "nodes": 3}, "got 1; use 3"),
        ({"world": 7, "ranks_per_node": 3}, "expected --world 3 .* got 7; leave out one"),
        ({"world": 0}, "expected --world >= 1, got 0"),
        ({"world": 10**9}, "expected at most 1,048,576 ranks, got 1,000,000,000"),
        ({"nodes": 2**19, "ranks_per_node": 4}, "at most 1,048,576 ranks, got 2,097,152"),
        ({"ranks_per_node": 0}, "expected --ranks-per-node >= 1, got 0"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(numbers, text):
    with pytest.raises(InputError, match=text):
        request_topology(PlanRequest(model="tiny", **numbers))


def test_the_command_imports_neither_a_gpu_library_nor_the_model_zoo(model):
    code = (
        "import sys; from sshsdp_fsdp_runtime.trainer import main; "
        f"status = main(['plan', {model!r}, '--world', '131072', '--nodes', '16384',"
        " '--degrees', '8,8,4096']); "
        "sys.exit(status or 'transformers' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("size", ["tiny", "tiny-moe"])
def test_a_size_of_the_trainer_is_planned_as_it_trains(size):
    request = PlanRequest(model=size, world=2)
    config = TrainConfig(model=ModelConfig(size=size), ranks=2)
    shape = config.model.shape(vocab=256, context=config.context)
    with torch.device("meta"):
        spec = ModelSpec.of(Decoder(shape))
    expected = build_plan(
        spec,
        2,
        groups=["layers.*"],
        packs=decoder_packs(shape),
        updates=decoder_updates(config.optimizer, shape),
    )
    assert make_plan(request).signature() == expected.signature()
    plain = make_plan(replace(request, optimizer=("adamw",)))
    assert not plain.packs
    assert {atom.rule.name for atom in plain.atoms} == {"adamw"}
