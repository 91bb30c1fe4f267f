"""Small tokenizers and models, built in code. One token a word; the tests write the ids as literal numbers."""

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

#         0        1      2       3         4        5        6      7       8     9       10        11
WORDS = ["<unk>", "<s>", "</s>", "<user>", "<sys>", "<bot>", "two", "plus", "is", "four", "please", "hello"]
TEMPLATE = (
    "{% for m in messages %}"
    "{{ {'user': '<user> ', 'system': '<sys> ', 'assistant': '<bot> '}[m['role']] + m['content'] }}"
    "{% if not loop.last %}{{ ' ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' <bot>' }}{% endif %}"
)
TEMPLATE_WITH_BOS = "{{ bos_token }}" + TEMPLATE


def tiny_tokenizer(*, adds_bos=False, adds_eos=False, template=None, **options) -> PreTrainedTokenizerFast:
    """``adds_bos``/``adds_eos``: what its post-processor puts around a text. No pad token unless given."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(word, special=True) for word in WORDS[1:6]])
    if adds_bos or adds_eos:
        single = ("<s> " if adds_bos else "") + "$A" + (" </s>" if adds_eos else "")
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} | options
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    tokenizer.chat_template = template
    return tokenizer


def tiny_llama_config(**options) -> LlamaConfig:
    sizes = {
        "vocab_size": 12,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return LlamaConfig(**(sizes | options))


def tiny_llama(seed=0, **options) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny_llama_config(**options)).eval()
