"""DiffAug: two learned prefixes make the two views of a positive pair.

Stage 1 trains the prefixes alone to tell entailment from contradiction; stage 2 trains prefixes and backbone with a
contrastive loss, on sentences under both prefixes (semi-supervised) or on NLI triplets (supervised).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from diffaug.augment.prefix import ReparametrisedPrefix
from diffaug.config import Recipe
from diffaug.data.collate import Collator, collator_for
from diffaug.data.corpus import Corpus
from diffaug.data.streams import Batch
from diffaug.methods.base import Inputs, Method, Represent, Stage
from diffaug.models.attention import attention_shape
from diffaug.models.config import DenseConfig, ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.heads import build_head
from diffaug.models.rows import join_rows
from diffaug.objectives.contrastive import info_nce
from diffaug.objectives.nli import pair_features
from diffaug.training.distributed import gather_rows

FIRST, SECOND = 0, 1  # the views: premise or first copy, hypothesis or second copy


class DiffAug(Method):
    """See the module's text."""

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        width = encoder.backbone.config.hidden_size
        self.projection = build_head([DenseConfig(width, width)])  # in training only
        self.classifier = nn.Linear(3 * width, 2)

    @classmethod
    def build(cls, recipe: Recipe, backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> DiffAug:
        config = ModelConfig(
            pooling="mean" if recipe.model.template is None else "mask",
            template=recipe.model.template,
            final_stop=recipe.model.final_stop,
            prefix=PrefixConfig(views=2, length=recipe.model.prefix_length),
        )
        assert config.prefix is not None
        prefix = ReparametrisedPrefix(config.prefix, attention_shape(backbone), recipe.model.prefix_dropout)
        encoder = Encoder(backbone, config, prefix)
        return cls(recipe, encoder, collator_for(encoder, tokenizer, recipe.data.max_length))

    def roles(self) -> dict[str, nn.Module]:
        assert self.encoder.prefix is not None
        return {
            "backbone": self.encoder.backbone,
            "prefix": self.encoder.prefix,
            "projection": self.projection,
            "classifier": self.classifier,
        }

    def stages(self, corpus: Corpus) -> list[Stage]:
        first, second = self.recipe.stage1, self.recipe.stage2
        pairs = corpus.nli_pairs()
        contrastive = corpus.triplets() if second.objective == "triplets" else corpus.sentences()
        streams = {"contrastive": (contrastive, second.batch_size)}
        roles = ["backbone", "prefix", "projection"]
        if second.aux_weight:
            streams["pairs"] = (pairs, second.aux_batch_size)
            roles.append("classifier")
        batches = max(1, len(contrastive) // min(second.batch_size, len(contrastive)))
        steps2 = second.steps or max(1, round(second.epochs * batches / self.recipe.loop.accumulate))
        steps1 = first.max_steps if first.steps == "auto" else first.steps
        return [
            Stage(
                number=1,
                steps=steps1,
                automatic=first.steps == "auto",
                streams={"pairs": (pairs, first.batch_size)},
                learning_rates={"prefix": first.learning_rate, "classifier": first.learning_rate},
                schedule_steps=steps2 if self.recipe.released.stage1_schedule_of_stage2 else steps1,
                warmup=first.warmup,
                weight_decay=first.weight_decay,
            ),
            Stage(
                number=2,
                steps=steps2,
                streams=streams,
                learning_rates={r: second.role_learning_rates.get(r, second.learning_rate) for r in roles},
                schedule_steps=steps2,
                warmup=second.warmup,
                weight_decay=second.weight_decay,
                gradient_cache=second.gradient_cache,
            ),
        ]

    def collate(self, stage: Stage, batches: Mapping[str, Batch]) -> Inputs:
        """Rows of one forward: sentences of the contrastive loss, then NLI pairs, then bare templates."""
        ids: list[list[int]] = []
        views: list[int] = []
        extra: dict[str, Tensor | int] = {}
        if "contrastive" in batches:
            examples = batches["contrastive"].examples
            if len(examples[0]) == 1:
                examples = [(sentence, sentence) for (sentence,) in examples]
            for column, sentences in enumerate(zip(*examples, strict=True)):
                ids += sentences
                views += [FIRST if column == 0 else SECOND] * len(sentences)
            extra["anchors"] = len(examples)
            extra["columns"] = len(examples[0])
        contrastive = len(ids)
        if "pairs" in batches:
            premises, hypotheses = zip(*batches["pairs"].examples, strict=True)
            ids += [*premises, *hypotheses]
            views += [FIRST] * len(premises) + [SECOND] * len(hypotheses)
            extra["labels"] = torch.tensor(batches["pairs"].labels)
        rows = self.collator.rows(ids, views)
        if contrastive and self.recipe.stage2.denoise and self.recipe.model.template is not None:
            kinds, extra["bare"] = self._bare_templates(ids[:contrastive], views[:contrastive])
            extra["bare_rows"] = len(kinds)
            rows = join_rows(rows, self.collator.bare_templates(*zip(*kinds, strict=True)))
        return Inputs(rows, extra)

    def _bare_templates(
        self, ids: Sequence[Sequence[int]], views: Sequence[int]
    ) -> tuple[list[tuple[int, int]], Tensor]:
        """The distinct (length, view) a batch needs a bare template for, and which of them each row needs."""
        more = self.recipe.model.prefix_length if self.recipe.released.denoise_counts_prefix else 0
        wanted = [(len(sentence) + more, view) for sentence, view in zip(ids, views, strict=True)]
        kinds = list(dict.fromkeys(wanted))
        place = {kind: i for i, kind in enumerate(kinds)}
        return kinds, torch.tensor([place[kind] for kind in wanted])

    def losses(self, stage: Stage, inputs: Inputs, represent: Represent) -> dict[str, Tensor]:
        vectors = represent(inputs.rows)
        found: dict[str, Tensor] = {}
        contrastive = 0
        if "anchors" in inputs.extra:
            contrastive = inputs.extra["anchors"] * inputs.extra["columns"]
            states = vectors[:contrastive]
            if "bare" in inputs.extra:
                bare = vectors[-inputs.extra["bare_rows"] :]
                states = states - bare[inputs.extra["bare"]]
            columns = self.projection(states).chunk(inputs.extra["columns"])
            anchors, positives, *negatives = (gather_rows(column) for column in columns)
            found["contrastive"] = info_nce(
                anchors, positives, negatives[0] if negatives else None, self.recipe.stage2.temperature
            )
        if "labels" in inputs.extra:
            labels = inputs.extra["labels"]
            pairs = vectors[contrastive : contrastive + 2 * len(labels)]
            if stage.number == 1 and self.recipe.released.stage1_through_projection:
                pairs = self.projection(pairs)
            logits = self.classifier(pair_features(*pairs.chunk(2)))
            found["nli"] = F.cross_entropy(logits.float(), labels)
        if stage.number == 1:
            found["loss"] = found["nli"]
        else:
            found["loss"] = found["contrastive"]
            if "nli" in found:
                found["loss"] = found["loss"] + self.recipe.stage2.aux_weight * found["nli"]
        return found

    def negatives_per_anchor(self, stage: Stage) -> int | None:
        if "contrastive" not in stage.streams:
            return None
        examples, batch_size = stage.streams["contrastive"]
        batch_size = min(batch_size, len(examples))
        return batch_size * max(1, len(examples.columns) - 1) - 1
