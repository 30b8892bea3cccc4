"""Labels of every kind, in miniature."""

from __future__ import annotations

from typing import Any

_WHO = ["dog", "cat", "market", "garden", "train", "letter", "river", "school"]
_WHAT = ["is in the news", "was seen on Monday", "looks old", "belongs to nobody", "needs help"]
STATEMENTS = [f"The {who} {what}." for who in _WHO for what in _WHAT]


def classes() -> list[dict[str, Any]]:
    """40 sentences of eight classes: what they are about."""
    return [{"text": text, "label": text.split()[1]} for text in STATEMENTS]


def unlabelled() -> list[str]:
    """Other sentences about the same things."""
    return [f"My {who} {what} {when}." for who in _WHO for what in _WHAT[:3] for when in ("today", "again")]


def scored() -> list[dict[str, Any]]:
    """48 pairs, scored by the number of words that they share."""
    rows = []
    for i in range(48):
        first, second = STATEMENTS[i % 40], STATEMENTS[(7 * i + i // 5) % 40].replace("The", "This")
        score = len(set(first.split()) & set(second.split()))
        rows.append({"sentence1": first + " " * (i // 40), "sentence2": second, "score": score})
    return rows


def same_or_different() -> list[dict[str, Any]]:
    """40 pairs."""
    return [
        {
            "sentence1": text,
            "sentence2": STATEMENTS[i - i % 5 + (i + 1) % 5].replace("The", "That")
            if i % 2
            else STATEMENTS[(i + 13) % 40].replace("The", "Some"),
            "label": "same" if i % 2 else "different",
        }
        for i, text in enumerate(STATEMENTS)
    ]


def triplets() -> list[dict[str, Any]]:
    """40 triplets."""
    return [
        {"anchor": text, "positive": text.replace("The", "That"), "negative": text.replace("The", "No")}
        for text in STATEMENTS
    ]


def matching() -> list[dict[str, Any]]:
    """40 pairs that match."""
    return [{"anchor": row["anchor"], "positive": row["positive"]} for row in triplets()]


KINDS = {
    "classes": classes,
    "scored": scored,
    "same": same_or_different,
    "triplets": triplets,
    "matching": matching,
}
