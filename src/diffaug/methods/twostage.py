"""What all methods share: stage 1 classifies NLI pairs, stage 2 contrasts sentences; a recipe may leave either out.

Both losses may also be taken in one step (`stage2.aux_weight`), which is what the papers call joint training. A
method's own file says what its encoder looks like, how views differ, and which contrastive loss it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from diffaug.config import Recipe
from diffaug.data.collate import Collator, collator_for
from diffaug.data.corpus import Corpus
from diffaug.data.records import Triplets
from diffaug.data.sampling import Batch, Examples
from diffaug.distributed import gather_rows
from diffaug.errors import DiffaugError
from diffaug.losses.contrastive import info_nce
from diffaug.losses.nli import pair_features
from diffaug.methods.base import Inputs, Method, Represent, Stage
from diffaug.models.config import DenseConfig, ModelConfig
from diffaug.models.denoise import denoise_config
from diffaug.models.encoder import Encoder
from diffaug.models.heads import build_head
from diffaug.models.initialise import init_normal, initializer_range
from diffaug.models.rows import Rows, join_rows
from diffaug.models.template import Template
from diffaug.models.views.base import Views

if TYPE_CHECKING:
    from typing_extensions import Self

FIRST, SECOND = 0, 1  # the views: premise or first copy, hypothesis or second copy
# Bare templates that go through the encoder at a time when the table for inference is computed.
_TABLE_BATCH = 64


class TwoStage(Method):
    """See the module's text. Subclasses override what differs.

    Attributes:
        view_kinds: the `views.kind` a recipe of this method may have.
        head_kinds: the `model.head_kind` likewise.
        stage1_learns: the role that learns in stage 1, beside the classifier.
        pair_views: the views of premise and hypothesis.
        normal_init: new layers start as N(0, initializer_range) with zero biases, as in the releases that call
            transformers' `init_weights`; False leaves torch's defaults, as sentence-transformers does.
    """

    view_kinds: ClassVar[tuple[str, ...]] = ("dropout",)
    head_kinds: ClassVar[tuple[str, ...]] = ("tanh",)
    stage1_learns: ClassVar[str] = "backbone"
    pair_views: ClassVar[tuple[int, int]] = (FIRST, FIRST)
    normal_init: ClassVar[bool] = True

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        width = encoder.backbone.config.hidden_size
        # In training only; a head that is kept at inference is the encoder's own.
        layer = self.head_layer(recipe, encoder.backbone)
        self.projection = build_head([layer]) if recipe.model.head == "training" else None
        labelled = recipe.stage1 is not None or (recipe.stage2 is not None and recipe.stage2.aux_weight > 0)
        self.classifier = nn.Linear(3 * width, recipe.data.nli_classes) if labelled else None
        self.initialise(self.projection, self.classifier, encoder.head)

    @classmethod
    def build(cls, recipe: Recipe, backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Self:
        if recipe.views.kind not in cls.view_kinds:
            raise DiffaugError(
                f"the method {recipe.method!r} does not have views.kind={recipe.views.kind}; it has "
                f"{' or '.join(cls.view_kinds)}"
            )
        settings = recipe.model
        if settings.head_kind not in cls.head_kinds:
            raise DiffaugError(
                f"the method {recipe.method!r} does not have model.head_kind={settings.head_kind}; it has "
                f"{' or '.join(cls.head_kinds)}"
            )
        config = cls.model_config(recipe, backbone)
        if settings.denoise:
            # The MLM head comes first: then the template's share is subtracted from what the head gives.
            behind_head = settings.head == "kept" and settings.head_kind == "mlm"
            template = Template.build(tokenizer, config.template)
            config = replace(config, denoise=denoise_config(config, backbone, template, behind_head=behind_head))
        encoder = Encoder(backbone, config, cls.build_views(recipe, config, backbone))
        stop = config.final_stop if settings.train_final_stop is None else settings.train_final_stop
        collator = collator_for(
            encoder,
            tokenizer,
            recipe.data.max_length,
            settings.second_template,
            final_stop=stop and config.template is not None,
        )
        return cls(recipe, encoder, collator)

    @classmethod
    def model_config(cls, recipe: Recipe, backbone: PreTrainedModel) -> ModelConfig:
        """What the trained model will be at inference."""
        settings = recipe.model
        return ModelConfig(
            pooling=settings.pooling or ("mean" if settings.template is None else "mask"),
            template=settings.template,
            final_stop=settings.final_stop and settings.template is not None,
            head=(cls.head_layer(recipe, backbone),) if settings.head == "kept" else (),
        )

    @classmethod
    def head_layer(cls, recipe: Recipe, backbone: PreTrainedModel) -> DenseConfig:
        """The head, whether it is for training only or kept."""
        width = backbone.config.hidden_size
        return DenseConfig(width, width)

    @classmethod
    def build_views(cls, recipe: Recipe, config: ModelConfig, backbone: PreTrainedModel) -> Views | None:
        """The module that makes views differ inside the encoder, if there is one."""
        return None

    def initialise(self, *modules: nn.Module | None) -> None:
        """Set the initial weights of new layers; see `normal_init`."""
        for module in modules:
            if module is not None and self.normal_init:
                init_normal(module, initializer_range(self.encoder.backbone))

    def roles(self) -> dict[str, nn.Module]:
        modules = {
            "backbone": self.encoder.backbone,
            "views": self.encoder.views,
            "projection": self.projection or self.encoder.head,
            "classifier": self.classifier,
        }
        return {role: m for role, m in modules.items() if m is not None and any(True for _ in m.parameters())}

    def represent(self, rows: Rows) -> Tensor:
        return self.encoder.represent(rows, pooling=self.recipe.model.train_pooling)

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute what the template says by itself, for every length of a sentence, with the weights of this moment."""
        denoise = self.encoder.denoise
        if denoise is None:
            return
        for start in range(0, denoise.config.lengths, _TABLE_BATCH):
            lengths = range(start, min(start + _TABLE_BATCH, denoise.config.lengths))
            states = self.encoder.represent(self.collator.bare_templates(lengths).to(denoise.table.device))
            if denoise.config.behind_head:
                states = self.encoder.head(states)
            denoise.table[start : lengths.stop] = states

    # What a run does

    def stages(self, corpus: Corpus) -> list[Stage]:
        first, second = self.recipe.stage1, self.recipe.stage2
        aux = second is not None and second.aux_weight > 0
        labelled = self.labelled_examples(corpus) if first is not None or aux else None
        found = []
        if first is not None:
            assert labelled is not None
            automatic = first.steps == "auto"
            steps = first.max_steps if first.steps == "auto" else first.steps
            if steps is None:
                steps = self._steps(first.epochs, labelled, first.batch_size)
            found.append(
                Stage(
                    number=1,
                    steps=steps,
                    automatic=automatic,
                    streams={"nli": (labelled, first.batch_size)},
                    learning_rates={self.stage1_learns: first.learning_rate, "classifier": first.learning_rate},
                    schedule_steps=steps,
                    warmup=first.warmup,
                    weight_decay=first.weight_decay,
                )
            )
        if second is not None:
            contrastive = self.contrastive_examples(corpus)
            streams = {"contrastive": (contrastive, second.batch_size)}
            if aux:
                assert labelled is not None
                streams["nli"] = (labelled, second.aux_batch_size)
            steps = second.steps or self._steps(second.epochs, contrastive, second.batch_size)
            found.append(
                Stage(
                    number=2,
                    steps=steps,
                    streams=streams,
                    learning_rates=self._stage2_rates(aux),
                    schedule_steps=steps,
                    schedule=second.schedule,
                    warmup=second.warmup,
                    weight_decay=second.weight_decay,
                    gradient_cache=second.gradient_cache,
                    dropout=second.dropout,
                )
            )
        return found

    def stage2_learns(self) -> list[str]:
        """The roles that learn in stage 2, unless the recipe freezes some; the classifier joins with its loss."""
        return [role for role in self.roles() if role != "classifier"]

    def labelled_examples(self, corpus: Corpus) -> Examples:
        """What stage 1 and the auxiliary loss classify: triplets, each of which is two pairs, or labelled pairs."""
        triplets = self.recipe.data.nli_classes == 2 and isinstance(corpus.nli, Triplets)
        return corpus.triplets() if triplets else corpus.nli_pairs()

    def contrastive_examples(self, corpus: Corpus) -> Examples:
        """What stage 2 contrasts."""
        assert self.recipe.stage2 is not None
        choices = {
            "triplets": corpus.triplets,
            "unlabelled": corpus.sentences,
            "nli_sentences": corpus.nli_sentences,
        }
        return choices[self.recipe.stage2.objective]()

    def _stage2_rates(self, aux: bool) -> dict[str, float]:
        assert self.recipe.stage2 is not None
        second, roles = self.recipe.stage2, self.roles()
        for setting, names in (("frozen", second.frozen), ("role_learning_rates", second.role_learning_rates)):
            if unknown := [name for name in names if name not in roles]:
                raise DiffaugError(f"stage2.{setting} names {unknown[0]!r}; the roles here are {', '.join(roles)}")
        learning = [*self.stage2_learns(), *(["classifier"] if aux else [])]
        return {
            role: second.role_learning_rates.get(role, second.learning_rate)
            for role in learning
            if role not in second.frozen
        }

    def _steps(self, epochs: float, examples: Examples, batch_size: int) -> int:
        batches = max(1, len(examples) // min(batch_size, len(examples)))
        return max(1, round(epochs * batches / self.recipe.loop.accumulate))

    # What a step does

    def collate(self, stage: Stage, batches: Mapping[str, Batch]) -> Inputs:
        """Rows of one forward: sentences of the contrastive loss, then of the NLI loss, then bare templates."""
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
        if "nli" in batches:
            # Hypotheses are one column of pairs, or the entailments and then the contradictions of triplets.
            premises, *columns = zip(*batches["nli"].examples, strict=True)
            hypotheses = [sentence for column in columns for sentence in column]
            ids += [*premises, *hypotheses]
            views += [self.pair_views[0]] * len(premises) + [self.pair_views[1]] * len(hypotheses)
            labels = batches["nli"].labels or [1] * len(premises) + [0] * len(premises)
            extra["labels"] = torch.tensor(labels)
            extra["premises"] = len(premises)
        if not self._views_differ():
            views = [FIRST] * len(ids)
        rows = self.collator.rows(ids, views)
        if contrastive and self._denoises():
            kinds, extra["bare"] = self._bare_templates(ids[:contrastive], views[:contrastive])
            extra["bare_rows"] = len(kinds)
            rows = join_rows(rows, self.collator.bare_templates(*zip(*kinds, strict=True)))
        return Inputs(rows, extra)

    def _views_differ(self) -> bool:
        """By a module or a template of their own, and not by dropout alone."""
        module = self.encoder.views is not None and not self.recipe.views.same
        return module or len(self.collator.templates) > 1

    def bare_length(self, length: int) -> int:
        """For how long a sentence the bare template of a sentence of that length stands."""
        return length

    def _denoises(self) -> bool:
        second = self.recipe.stage2
        return second is not None and second.denoise and self.recipe.model.template is not None

    def _bare_templates(
        self, ids: Sequence[Sequence[int]], views: Sequence[int]
    ) -> tuple[list[tuple[int, int]], Tensor]:
        """The distinct (length, view) a batch needs a bare template for, and which of them each row needs."""
        wanted = list(zip(map(len, ids), views, strict=True))
        place = {kind: i for i, kind in enumerate(dict.fromkeys(wanted))}
        kinds = [(self.bare_length(length), view) for length, view in place]
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
                states = self.subtract_templates(states, bare, inputs.extra["bare"])
            found |= self.contrast(states, inputs)
        if "labels" in inputs.extra:
            labels, count = inputs.extra["labels"], inputs.extra["premises"]
            pairs = self.pair_vectors(vectors[contrastive : contrastive + count + len(labels)])
            premises, hypotheses = pairs[:count], pairs[count:]
            assert self.classifier is not None
            # A triplet's premise is encoded once and belongs to two pairs.
            premises = premises.repeat(len(labels) // count, 1)
            logits = self.classifier(pair_features(premises, hypotheses))
            found["nli"] = F.cross_entropy(logits.float(), labels)
        found["loss"] = self.total(stage, found)
        return found

    def pair_vectors(self, vectors: Tensor) -> Tensor:
        """What the classifier reads: (premises, then hypotheses, hidden size)."""
        return vectors

    def subtract_templates(self, states: Tensor, bare: Tensor, which: Tensor) -> Tensor:
        """Denoising: the states of sentences, less those of their bare templates.

        Args:
            states: (rows, hidden size)
            bare: (distinct bare templates, hidden size)
            which: (rows,), the bare template of each row.
        """
        return states - bare[which]

    def project(self, states: Tensor) -> Tensor:
        """Pooled states to the vectors that are contrasted."""
        projected: Tensor = (self.projection or self.encoder.head)(states)
        return projected

    def contrast(self, states: Tensor, inputs: Inputs) -> dict[str, Tensor]:
        """The losses of the contrastive part of a step, by name.

        Args:
            states: (columns * anchors, hidden size): all anchors, all positives, and all hard negatives if there are.
            inputs: the step's.
        """
        assert self.recipe.stage2 is not None
        columns = self.project(states).chunk(inputs.extra["columns"])
        anchors, positives, *negatives = (gather_rows(column) for column in columns)
        loss = info_nce(anchors, positives, negatives[0] if negatives else None, self.recipe.stage2.temperature)
        return {"contrastive": loss}

    def total(self, stage: Stage, found: Mapping[str, Tensor]) -> Tensor:
        """What is minimised, of the losses of a step."""
        if stage.number == 1:
            return found["nli"]
        assert self.recipe.stage2 is not None
        loss = self.recipe.stage2.weight * found["contrastive"]
        return loss + self.recipe.stage2.aux_weight * found["nli"] if "nli" in found else loss

    def negatives_per_anchor(self, stage: Stage) -> int | None:
        if "contrastive" not in stage.streams:
            return None
        examples, batch_size = stage.streams["contrastive"]
        batch_size = min(batch_size, len(examples))
        return batch_size * max(1, len(examples.columns) - 1) - 1
