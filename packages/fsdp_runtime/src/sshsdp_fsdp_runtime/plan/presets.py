"""Rules for known families of Hugging Face models: groups, packs, and who is updated by what.

Matrices inside of blocks are updated by Muon, each as what it is mathematically: queries, keys and
values head by head, experts one by one, gate and up projections that share a tensor apart.
Everything else (embeddings, heads, routers, norms, biases) is updated by AdamW.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from torch import nn

from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec
from sshsdp_fsdp_runtime.plan.patterns import matches
from sshsdp_fsdp_runtime.plan.rules import Pack, Update, is_matrix
from sshsdp_updates import AdamW, Muon, TensorUnit, columns, experts, heads

Matrices: TypeAlias = Sequence[tuple[str, TensorUnit | None]]  # None: the whole tensor


@dataclass(slots=True)
class Preset:
    """Rules for one model; lists, to be edited before they are used.

    Attributes:
        model_type: the family, as its configuration names it.
        groups: patterns of modules that are gathered and reduced as one.
        packs: linear layers that are computed as one.
        updates: who is updated by what; the first match wins.
    """

    model_type: str
    groups: list[str]
    packs: list[Pack]
    updates: list[Update]

    def arguments(self) -> dict[str, Any]:
        """What to call `fully_shard` or `build_plan` with: ``fully_shard(model, **arguments)``."""
        return {"groups": self.groups, "packs": self.packs, "updates": self.updates}

    def describe(self) -> str:
        """All rules, one per line."""
        width = max(len(update.pattern) for update in self.updates)
        return "\n".join(
            [
                f"preset for {self.model_type}",
                *(f"group   {pattern}" for pattern in self.groups),
                *(f"pack    {pack.pattern}: {' + '.join(pack.members)}" for pack in self.packs),
                *(f"update  {u.pattern:{width}}  {_described(u)}" for u in self.updates),
            ]
        )


def for_model(
    config_or_model: Any, *, muon: Muon | None = None, adamw: AdamW | None = None
) -> Preset:
    """Rules for a model, by the ``model_type`` of its configuration.

    Args:
        config_or_model: a model that has a ``config``, or a configuration. With a model, rules that
            would claim nothing in it (it may lack a head, or be frozen in part) are left out.
        muon: the rule for matrices of blocks; default: its updates are scaled to AdamW's.
        adamw: the rule for everything else; vectors get the same without weight decay.

    Raises:
        TypeError: there is no configuration.
        ValueError: the family is not known.
    """
    config = getattr(config_or_model, "config", config_or_model)
    kind = getattr(config, "model_type", None)
    if not isinstance(kind, str):
        raise TypeError(
            "expected a Hugging Face model or its configuration, with a model_type, got "
            f"{type(config_or_model).__name__}; write rules by hand: see the README"
        )
    if kind not in _FAMILIES:
        raise ValueError(
            f"expected one of the families {', '.join(sorted(_FAMILIES))}, got {kind!r}; write "
            "rules by hand, or edit those of a family with the same names of modules"
        )
    family = _FAMILIES[kind](config)
    muon = muon or Muon(lr=3e-4, adjust_lr_fn="match_rms_adamw")
    adamw = adamw or AdamW(lr=3e-4, weight_decay=0.1)
    preset = Preset(
        kind,
        groups=[family.blocks],
        packs=list(family.packs),
        updates=[
            *(Update(pattern, muon, unit=unit) for pattern, unit in family.matrices),
            Update("**", adamw, where=is_matrix),
            Update("**", replace(adamw, weight_decay=0.0)),
        ],
    )
    return _fitted(preset, config_or_model) if isinstance(config_or_model, nn.Module) else preset


@dataclass(frozen=True, slots=True)
class _Family:
    """What the code of a family calls its parts.

    Attributes:
        blocks: pattern of the repeated modules.
        matrices: patterns of weights that Muon updates, with what is one matrix of them.
        packs: linear layers that read the same tensor.
    """

    blocks: str
    matrices: Matrices
    packs: Sequence[Pack]


def _head_size(config: Any) -> int:
    own: int | None = getattr(config, "head_dim", None)
    return own or config.hidden_size // config.num_attention_heads


def _projections(attention: str, size: int) -> Matrices:
    """Queries, keys and values by rows, the output projection by columns."""
    own = [(f"**.{attention}.{name}_proj.weight", heads(size)) for name in "qkv"]
    return [*own, (f"**.{attention}.o_proj.weight", columns(size))]


def _decoder(config: Any) -> _Family:
    """Llama and its relatives."""
    feed_forward = [(f"**.mlp.{name}_proj.weight", None) for name in ("gate", "up", "down")]
    return _Family(
        "**.layers.*",
        [*_projections("self_attn", _head_size(config)), *feed_forward],
        [_QKV, Pack("**.mlp", ["gate_proj", "up_proj"])],
    )


def _mixture(config: Any) -> _Family:
    """Experts in two tensors per layer, [experts, 2 x width, hidden] and [experts, hidden, width].

    Gate and up lie in one tensor, one after the other: blocks of `width` rows are matrices.
    """
    dense = _decoder(config).matrices if _has_dense_layers(config) else ()
    mixed = [
        ("**.mlp.experts.gate_up_proj", heads(config.moe_intermediate_size)),
        ("**.mlp.experts.down_proj", experts()),
    ]
    attention = _projections("self_attn", _head_size(config))
    return _Family("**.layers.*", [*(dense or attention), *mixed], [_QKV])


def _has_dense_layers(config: Any) -> bool:
    """Whether a mixture of experts has layers without experts: some by number, some by turns."""
    step: int = config.decoder_sparse_step
    return any(
        index in config.mlp_only_layers or (index + 1) % step
        for index in range(config.num_hidden_layers)
    )


def _gpt2(config: Any) -> _Family:
    """Weights are [inputs, outputs]: heads are columns of c_attn and rows of its c_proj."""
    size = _head_size(config)
    return _Family(
        "**.h.*",
        [
            ("**.attn.c_attn.weight", columns(size)),
            ("**.attn.c_proj.weight", heads(size)),
            ("**.mlp.c_fc.weight", None),
            ("**.mlp.c_proj.weight", None),
        ],
        [],
    )


def _vision(config: Any) -> _Family:
    return _Family(
        "**.layers.*",
        [
            *_projections("attention", _head_size(config)),
            ("**.mlp.fc1.weight", None),
            ("**.mlp.fc2.weight", None),
        ],
        [Pack("**.attention", ["q_proj", "k_proj", "v_proj"])],
    )


def _t5(config: Any) -> _Family:
    """Encoder and decoder; keys and values of cross attention read the encoder's output."""
    gated = [Pack("**.DenseReluDense", ["wi_0", "wi_1"])] if config.is_gated_act else []
    return _Family(
        "**.block.*",
        [
            *((f"**.*Attention.{name}.weight", heads(config.d_kv)) for name in "qkv"),
            ("**.*Attention.o.weight", columns(config.d_kv)),
            ("**.DenseReluDense.wi*.weight", None),
            ("**.DenseReluDense.wo.weight", None),
        ],
        [Pack("**.SelfAttention", ["q", "k", "v"]), Pack("**.EncDecAttention", ["k", "v"]), *gated],
    )


_QKV = Pack("**.self_attn", ["q_proj", "k_proj", "v_proj"])

_FAMILIES: Mapping[str, Callable[[Any], _Family]] = MappingProxyType(
    {
        "gpt2": _gpt2,
        "llama": _decoder,
        "mistral": _decoder,
        "qwen2": _decoder,
        "qwen3": _decoder,
        "qwen3_moe": _mixture,
        "t5": _t5,
        "vit": _vision,
    }
)


def _fitted(preset: Preset, model: nn.Module) -> Preset:
    """The preset without what would claim nothing in `model`."""
    spec = ModelSpec.of(model)
    used: set[int] = set()
    for parameter in spec.parameters:
        for update in preset.updates:
            named = any(matches(update.pattern, alias) for alias in parameter.aliases)
            if parameter.trainable and named and (not update.where or update.where(parameter)):
                used.add(id(update))
                break
    return replace(
        preset,
        packs=[p for p in preset.packs if any(matches(p.pattern, name) for name in spec.modules)],
        updates=[update for update in preset.updates if id(update) in used],
    )


def _described(update: Update) -> str:
    rule = type(update.rule).__name__
    unit = f", {update.unit.name}" if update.unit is not None else ""
    return f"{rule}{unit}" + (f" where {update.where.__name__}" if update.where else "")
