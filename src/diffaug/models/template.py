"""The tokens around a sentence: a prompt template, or just the tokenizer's special tokens."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from diffaug.errors import DiffaugError


@dataclass(frozen=True)
class Template:
    """A row of tokens is ``before + sentence + after``.

    Attributes:
        before, after: token ids on both sides of the sentence.
        mask_at: where the mask token stands: counted from the row's start if it comes before the sentence (>= 0),
            from its end otherwise (< 0); None if the template has none.
        spaced: whether the template writes a space before the sentence. Byte-level tokenizers (RoBERTa's) read a
            word with a space as another token than one without, so the space must travel with the sentence.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    mask_at: int | None = None
    spaced: bool = False

    @classmethod
    def build(cls, tokenizer: PreTrainedTokenizerBase, text: str | None) -> Template:
        """From a text with ``{}`` and ``[MASK]``, or, for None, from the special tokens alone."""
        start, end = _special_tokens(tokenizer)
        if text is None:
            return cls(start, end)
        if tokenizer.mask_token is None:
            raise DiffaugError("a template needs a tokenizer with a mask token, and this one has none")
        left, right = text.replace("[MASK]", tokenizer.mask_token).split("{}")
        before = (*start, *_ids(tokenizer, left.rstrip(" ")))
        after = (*_ids(tokenizer, right), *end)
        if (masks := (before + after).count(tokenizer.mask_token_id)) != 1:
            raise DiffaugError(f"the template {text!r} comes out of the tokenizer with {masks} mask tokens, not one")
        if tokenizer.mask_token_id in before:
            mask_at = before.index(tokenizer.mask_token_id)
        else:
            mask_at = after.index(tokenizer.mask_token_id) - len(after)
        return cls(before, after, mask_at, spaced=left.endswith(" "))

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def mask_position(self, row_length: int) -> int:
        """The mask token's index in a row of that many tokens, the template's own counted; 0 without a mask token."""
        if self.mask_at is None:
            return 0
        return self.mask_at if self.mask_at >= 0 else row_length + self.mask_at


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids a tokenizer puts before and after a text."""
    bare = _ids(tokenizer, "a")
    full = tuple(tokenizer("a")["input_ids"])
    for at in range(len(full) - len(bare) + 1):
        if full[at : at + len(bare)] == bare:
            return full[:at], full[at + len(bare) :]
    raise DiffaugError("the tokenizer changes a text's tokens when it adds special tokens; it cannot be used here")
