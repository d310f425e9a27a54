"""A BERT as its library's users save and load it: weights in safetensors, a configuration, a tokenizer. No
model hub is asked: the weights are seeded, the words are made. Runs in the environment that has PyTorch."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = 30_522
LAYERS = 6  # as DistilBERT: 67 million parameters, 267 MB
REQUEST_WORDS = 32


def prepare(folder: Path, words: int = WORDS, layers: int = LAYERS) -> None:
    torch.manual_seed(50)
    BertModel(BertConfig(vocab_size=words, num_hidden_layers=layers)).save_pretrained(folder)
    numbers = {f"w{number}": number for number in range(words)}
    splits = Tokenizer(models.WordLevel(numbers, unk_token="w0"))
    splits.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=splits, unk_token="w0", pad_token="w0")
    tokenizer.save_pretrained(folder)


def load(folder: Path) -> tuple:
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def answer(model, tokenizer, seed: int) -> bytes:
    """The embedding of a sentence that differs from request to request."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(1, tokenizer.vocab_size, (REQUEST_WORDS,), generator=generator)
    tokens = tokenizer(" ".join(f"w{number}" for number in numbers.tolist()), return_tensors="pt")
    return model(**tokens).last_hidden_state.numpy().tobytes()
