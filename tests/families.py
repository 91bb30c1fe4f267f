"""One tiny random model for each way in which transformers' families differ, with weights large enough to matter."""

import functools

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

torch.set_num_threads(1)  # for tensors this small, more threads only wait for one another

VOCABULARY, CONTEXT, EOS = 23, 40, 2
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
HALF_SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "mistral": {"sliding_window": None},
    "mistral-window": {"sliding_window": 4},
    "gemma2": HALF_SLIDING | {"query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0},
    "gemma3": HALF_SLIDING | {"query_pre_attn_scalar": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
    "cohere": {"logit_scale": 0.5},
    "granite": {"logits_scaling": 2.0},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
MODEL_TYPES = {"mistral-window": "mistral", "gemma3": "gemma3_text"}
EAGER = {"gemma2"}
"""The scores of its attention are capped, which other implementations cannot do."""


def exact_norms(module: PreTrainedModel) -> PreTrainedModel:
    """``module`` in float64 throughout: RMS norms compute in float32 whatever they are given, and round there."""

    def exact(norm: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return norm.weight * x * (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()

    for part in module.modules():
        if type(part).__name__.endswith("RMSNorm"):
            part.forward = functools.partial(exact, part)
    return module.double()


def tiny_model(family: str, seed: int = 0, **options) -> PreTrainedModel:
    """In float32 and eval mode."""
    config = CONFIG_MAPPING[MODEL_TYPES.get(family, family)](**(SIZES | FAMILIES[family] | options))
    torch.manual_seed(seed)
    attention = {"attn_implementation": "eager"} if family in EAGER else {}
    return AutoModelForCausalLM.from_config(config, **attention).eval()
