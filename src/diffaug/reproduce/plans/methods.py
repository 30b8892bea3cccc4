"""The rows of methods that several experiments have."""

from __future__ import annotations

from diffaug.reproduce.plans.base import Row

UNSUPERVISED, SEMI, SUPERVISED = "unsupervised", "semi-supervised", "supervised"
SHOWN = "shown the test sentences"
"""Flows that learn from the sentences they are tested on: another game, so they are compared with each other only."""

UNTRAINED = tuple(
    Row(f"No training, {what}", f"untrained-{pooling}", UNSUPERVISED)
    for pooling, what in (
        ("cls", "[CLS]"),
        ("mean", "mean"),
        ("first-last", "first and last layer"),
        ("static-last", "embeddings and last layer"),
        ("last2", "last two layers"),
        ("template", "template"),
    )
)
UNSUPERVISED_METHODS = (
    Row("BERT-flow, NLI", "bert-flow-nli", UNSUPERVISED),
    Row("ConSERT, unsup", "consert-unsup", UNSUPERVISED),
    Row("SimCSE, unsup", "simcse-unsup", UNSUPERVISED),
    Row("SimCSE, synonyms", "simcse-synonym", UNSUPERVISED),
    Row("PromptBERT, unsup", "promptbert-unsup", UNSUPERVISED),
    Row("DiffCSE", "diffcse", UNSUPERVISED),
)
SBERT = (
    Row("SBERT", "sbert", SEMI),
    Row("SBERT, two labels", "sbert-2", SEMI),
    Row("SBERT-flow, NLI", "sbert-flow-nli", SEMI),
)
WITH_LABELS = {
    name: tuple(Row(f"{name}, {way}", f"{name.lower()}-{way}", SEMI) for way in ("joint", "sup-unsup", "sup-joint"))
    for name in ("ConSERT", "SimCSE", "PromptBERT")
}
"""Three ways to add NLI labels to a method that learns from raw text."""
JOINT_NOTE = "The paper chose the weight of a joint row's NLI loss for each method and does not give it"
DIFFAUG_SEMI = Row("DiffAug, semi", "diffaug-semi", SEMI, baseline=False)
DIFFAUG_AUX = Row("DiffAug, semi + aux", "diffaug-semi-aux", SEMI, baseline=False)
TARGET = (
    Row("BERT-flow, target", "bert-flow-target", SHOWN),
    Row("SBERT-flow, target", "sbert-flow-target", SHOWN),
)
SIMCSE_SUP = Row("SimCSE, sup", "simcse-sup", SUPERVISED)
PROMPTBERT_SUP = Row("PromptBERT, sup", "promptbert-sup", SUPERVISED)
DIFFAUG_SUP = Row("DiffAug, sup", "diffaug-sup", SUPERVISED, baseline=False)
SUPERVISED_METHODS = (SIMCSE_SUP, PROMPTBERT_SUP, DIFFAUG_SUP)
