"""A tiny model with random weights and a real tokenizer: real KV events and token ids, text without sense.

    model.py qwen3|gemma3 TOKENIZER_DIR OUT_DIR
"""

import pathlib
import shutil
import sys

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3TextConfig,
    Qwen3Config,
)

# Heads of 64: the least that vLLM's attention on the CPU takes together with its block size.
SMALL = dict(
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    max_position_embeddings=40960,
    tie_word_embeddings=True,
)


def config(kind, vocabulary):
    # Vocabularies are padded, as in the published models.
    vocab_size = -(-vocabulary // 64) * 64
    if kind == "qwen3":
        return Qwen3Config(vocab_size=vocab_size, num_hidden_layers=2, **SMALL)
    if kind == "gemma3":
        # Five layers with a window to one that sees everything, as in the published models.
        return Gemma3TextConfig(vocab_size=vocab_size, num_hidden_layers=6, sliding_window=128, **SMALL)
    sys.exit(f"{kind}: qwen3 or gemma3")


def main():
    kind, tokenizer, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, out / name)
    torch.manual_seed(1)
    vocabulary = len(AutoTokenizer.from_pretrained(out))
    model = AutoModelForCausalLM.from_config(config(kind, vocabulary), dtype=torch.bfloat16)
    model.save_pretrained(out)


main()
