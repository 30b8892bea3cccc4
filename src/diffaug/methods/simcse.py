"""SimCSE: the first token's state, contrasted under dropout (unsupervised) or over NLI triplets (supervised).

With `views.kind: synonym` it is the baseline of its paper: in the positive, one word is replaced with a synonym.
"""

from __future__ import annotations

from typing import ClassVar

from diffaug.data.corpus import Corpus
from diffaug.data.sampling import Examples, Mixture
from diffaug.errors import DiffaugError
from diffaug.methods.twostage import TwoStage
from diffaug.models.views.synonym import SynonymReplacement


class SimCSE(TwoStage):
    """SimCSE."""

    view_kinds: ClassVar[tuple[str, ...]] = ("dropout", "synonym")

    def contrastive_examples(self, corpus: Corpus) -> Examples | Mixture:
        assert self.recipe.stage2 is not None
        if self.recipe.views.kind != "synonym":
            return super().contrastive_examples(corpus)
        if self.recipe.stage2.objective in ("triplets", "labels"):
            raise DiffaugError(
                "labels have their own positives: for synonyms set stage2.objective to unlabelled or nli_sentences"
            )
        unlabelled = self.recipe.stage2.objective == "unlabelled"
        sentences = corpus.sentences if unlabelled else corpus.nli_sentences
        return sentences(positive=SynonymReplacement(self.recipe.seed))
