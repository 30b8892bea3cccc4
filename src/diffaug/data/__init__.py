"""From text to tensors: reading, sampling and tokenising training and evaluation data.

The readers and record types can be imported from here. Nothing in this file imports torch.
"""

from diffaug.data.problems import Problem, ProblemCount
from diffaug.data.read import (
    read_classes,
    read_labelled,
    read_labelled_pairs,
    read_nli,
    read_positive_pairs,
    read_scored_pairs,
    read_sentences,
    read_triplets,
)
from diffaug.data.records import (
    Classes,
    LabelledPairs,
    PositivePairs,
    ScoredPairs,
    Triplets,
    pairs_from_triplets,
    triplets_from_pairs,
)

__all__ = [
    "Classes",
    "LabelledPairs",
    "PositivePairs",
    "Problem",
    "ProblemCount",
    "ScoredPairs",
    "Triplets",
    "pairs_from_triplets",
    "read_classes",
    "read_labelled",
    "read_labelled_pairs",
    "read_nli",
    "read_positive_pairs",
    "read_scored_pairs",
    "read_sentences",
    "read_triplets",
    "triplets_from_pairs",
]
