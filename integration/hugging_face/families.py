"""Small random models of several Hugging Face families, and a batch and a loss for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY = 53  # a prime: no number of ranks divides it


@dataclass(frozen=True)
class Family:
    """How to build a model, and what to feed it.

    Attributes:
        build: a new model; seed before.
        batch: keyword arguments of its forward, labels included, from a generator.
        generates: whether it has ``generate`` over token ids.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], dict[str, torch.Tensor]]
    generates: bool = True


def _tokens(generator: torch.Generator) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (2, 7), generator=generator)
    return {"input_ids": ids, "labels": ids}


def _pairs(generator: torch.Generator) -> dict[str, torch.Tensor]:
    source = torch.randint(3, VOCABULARY, (2, 6), generator=generator)
    target = torch.randint(3, VOCABULARY, (2, 4), generator=generator)
    return {"input_ids": source, "labels": target}


def _images(generator: torch.Generator) -> dict[str, torch.Tensor]:
    pixels = torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)
    return {"pixel_values": pixels, "labels": torch.randint(0, 5, (2,), generator=generator)}


DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 3,  # more than there are slots
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama(**changes: Any) -> nn.Module:
    """Grouped queries, no biases."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER | changes))


def qwen3(**changes: Any) -> nn.Module:
    """Norms per head; heads that are wider than the width divided by their number."""
    settings = DECODER | {"head_dim": 10, "tie_word_embeddings": True} | changes
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**settings))


def qwen3_moe(implementation: str) -> nn.Module:
    """Experts in three-dimensional tensors; two of five are used per token."""
    config = transformers.Qwen3MoeConfig(
        **DECODER,
        head_dim=8,
        moe_intermediate_size=8,
        num_experts=5,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        experts_implementation=implementation,
    )
    return transformers.Qwen3MoeForCausalLM(config)


def gpt2() -> nn.Module:
    """Transposed projections (Conv1D), Q, K and V in one, learned positions, a tied head."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=24,
        n_layer=3,
        n_head=3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def vit() -> nn.Module:
    """A convolution of patches, a class token, learned positions."""
    config = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=20,
        image_size=8,
        patch_size=4,
        num_labels=5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.ViTForImageClassification(config)


def t5(**changes: Any) -> nn.Module:
    """Encoder and decoder that share one embedding with the head; relative positions."""
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "d_model": 24,
        "d_kv": 10,
        "d_ff": 20,
        "num_layers": 3,
        "num_heads": 3,
        "dropout_rate": 0.0,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 0,
    }
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**settings | changes))


FAMILIES: dict[str, Family] = {
    "llama": Family(llama, _tokens),
    "llama-tied": Family(lambda: llama(tie_word_embeddings=True), _tokens),
    "qwen3": Family(qwen3, _tokens),
    **{
        f"qwen3-moe-{name}": Family(lambda name=name: qwen3_moe(name), _tokens)
        for name in ("eager", "batched_mm", "grouped_mm")
    },
    "gpt2": Family(gpt2, _tokens),
    "vit": Family(vit, _images, generates=False),
    "t5": Family(t5, _pairs),
}
