"""The common part of the methods: stage 1 classifies NLI pairs, stage 2 contrasts sentences. Either may be left out.

Both losses can be combined in one step (`stage2.aux_weight`), which the papers call joint training. A method's own file
defines its encoder, how its views differ, and its contrastive loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from diffaug.config import Recipe
from diffaug.config.registry import LOSSES, VIEWS, check_options
from diffaug.config.typed import nearest
from diffaug.data.collate import Collator, collator_for
from diffaug.data.corpus import Corpus
from diffaug.data.sampling import Batch, Example, Examples, Mixture, Target
from diffaug.distributed import gather_rows
from diffaug.errors import DiffaugError
from diffaug.losses.contrastive import supervised_contrastive
from diffaug.losses.nli import pair_features
from diffaug.losses.pairs import angle, cosent
from diffaug.methods.base import BareTemplates, ContrastiveRows, Encode, LabelledPairs, Method, Stage, StepBatch
from diffaug.models.batch import TokenBatch, concatenate
from diffaug.models.config import VIEW_PARTS, DenseConfig, ModelConfig, Pooling, ViewsConfig
from diffaug.models.denoise import denoise_config
from diffaug.models.encoder import Encoder
from diffaug.models.heads import build_head
from diffaug.models.initialise import init_normal, initializer_range
from diffaug.models.template import Template
from diffaug.models.views.base import Views
from diffaug.models.views.build import new_views, text_views

if TYPE_CHECKING:
    from typing_extensions import Self

FIRST, SECOND = 0, 1  # the views: premise or first copy, hypothesis or second copy
# Batch size of the bare templates in the table for inference.
_TABLE_BATCH = 64
_LOSS_ARGUMENTS = ("anchors", "positives", "negatives", "temperature")


class TwoStage(Method):
    """A method with these two stages. Subclasses override what differs.

    Attributes:
        view_kinds: the values of `views.kind` that the method supports, in addition to those of plugins.
        default_loss: the contrastive loss, unless `stage2.loss` names another.
        head_kinds: the values of `model.head_kind` that it supports.
        stage1_learns: the role that is trained in stage 1, with the classifier.
        pair_views: the views of premise and hypothesis.
        normal_init: initialise new layers to N(0, initializer_range) with zero biases, as the releases do that call
            transformers' `init_weights`; False keeps torch's defaults, as sentence-transformers does.
    """

    view_kinds: ClassVar[tuple[str, ...]] = ("dropout",)
    default_loss: ClassVar[str] = "info_nce"
    head_kinds: ClassVar[tuple[str, ...]] = ("tanh",)
    stage1_learns: ClassVar[str] = "backbone"
    pair_views: ClassVar[tuple[int, int]] = (FIRST, FIRST)
    normal_init: ClassVar[bool] = True

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        width = encoder.backbone.config.hidden_size
        # Only for training; a head that is kept at inference belongs to the encoder.
        layer = self.head_layer(recipe, encoder.backbone)
        if recipe.model.head == "training" and encoder.config.head:
            layer = replace(layer, inputs=encoder.width, outputs=encoder.width)
        self.projection = build_head([layer]) if recipe.model.head == "training" else None
        labelled = recipe.stage1 is not None or (recipe.stage2 is not None and recipe.stage2.aux_weight > 0)
        self.classifier = nn.Linear(3 * width, recipe.data.nli_classes) if labelled else None
        self.initialise(self.projection, self.classifier, encoder.head)
        self.views_trained = False  # by an earlier run

    @classmethod
    def build(
        cls,
        recipe: Recipe,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        finished: Encoder | None = None,
    ) -> Self:
        if VIEWS.is_own(recipe.views.kind) and recipe.views.kind not in cls.view_kinds:
            raise DiffaugError(
                f"the method {recipe.method!r} does not support views.kind={recipe.views.kind}; set it to "
                f"{' or '.join(cls.view_kinds)}"
            )
        settings = recipe.model
        if settings.head_kind not in cls.head_kinds:
            raise DiffaugError(
                f"the method {recipe.method!r} does not support model.head_kind={settings.head_kind}; set it to "
                f"{' or '.join(cls.head_kinds)}"
            )
        if recipe.stage2 is not None:
            if recipe.stage2.label_loss == "angle" and any(size % 2 for size in recipe.stage2.matryoshka):
                raise DiffaugError(
                    "stage2.label_loss=angle needs even numbers in stage2.matryoshka; change one of them"
                )
            loss = LOSSES.get(recipe.stage2.loss or cls.default_loss)
            check_options("stage2.loss_options", loss, recipe.stage2.loss_options, *_LOSS_ARGUMENTS)
        views = cls.build_views(recipe, backbone)
        if finished is not None and finished.views is not None:
            wanted = None if views is None else views.config
            if finished.config.views != wanted:
                raise DiffaugError(
                    f"{settings.backbone} has {_described(finished.config.views)}, but this recipe (method "
                    f"{recipe.method}) has {_described(wanted)}; train it with the method and the views that it has"
                )
            views = finished.views
        config = cls.model_config(recipe, backbone, None if finished is None else finished.config)
        config = config.with_views(None if views is None else views.config)
        if settings.denoise or config.denoise is not None:
            # The MLM head is applied first, and the bare template's vector is subtracted from its output.
            behind_head = settings.head == "kept" and settings.head_kind == "mlm"
            if config.denoise is not None:
                behind_head = config.denoise.behind_head
            template = Template.build(tokenizer, config.template)
            config = replace(config, denoise=denoise_config(config, backbone, template, behind_head=behind_head))
        encoder = Encoder(backbone, config, views)
        stop = config.final_stop if settings.train_final_stop is None else settings.train_final_stop
        collator = collator_for(
            encoder,
            tokenizer,
            recipe.data.max_length,
            settings.second_template,
            final_stop=stop and config.template is not None,
        )
        method = cls(recipe, encoder, collator)
        if finished is not None:
            method.views_trained = finished.views is not None
            if finished.config.head:
                encoder.head.load_state_dict(finished.head.state_dict())
            if settings.pooling == "auto" and settings.template not in (None, config.template):
                method.notes.append(
                    f"{settings.backbone} keeps its own {config.pooling} pooling; model.template is unused"
                )
        return method

    @classmethod
    def model_config(
        cls, recipe: Recipe, backbone: PreTrainedModel, finished: ModelConfig | None = None
    ) -> ModelConfig:
        """The settings of the trained model at inference.

        Args:
            recipe: of the run.
            backbone: of the model.
            finished: the settings of the model that training starts from, if it is more than a plain encoder.

        Raises:
            DiffaugError: the method cannot train a part of that model.
        """
        settings = recipe.model
        config = finished or ModelConfig()
        if config.flow is not None:
            raise DiffaugError(
                f"{settings.backbone} has a flow, which cannot be trained further; use the model as it is"
            )
        if finished is None or settings.pooling != "auto":
            pooling: Pooling = "mean" if settings.template is None else "mask"
            if settings.pooling is not None and settings.pooling != "auto":
                pooling = settings.pooling
            config = replace(
                config,
                pooling=pooling,
                template=settings.template,
                final_stop=settings.final_stop and settings.template is not None,
                denoise=None,
            )
        if config.template is not None and config.prompt:
            raise DiffaugError(
                f"{settings.backbone} puts the prompt {config.prompt!r} before every sentence, which cannot be "
                "combined with a template; set model.template=null and model.pooling=auto"
            )
        if settings.head == "kept" and not config.head:
            config = replace(config, head=(cls.head_layer(recipe, backbone),))
        if recipe.stage2 is not None:
            config = replace(config, matryoshka=tuple(sorted(recipe.stage2.matryoshka, reverse=True)))
        elif recipe.stage1 is not None:  # what a model was trained for before is lost
            config = replace(config, matryoshka=())
        width = config.head[-1].outputs if config.head else backbone.config.hidden_size
        if max(config.matryoshka, default=0) > width:
            raise DiffaugError(
                f"stage2.matryoshka has the dimension {max(config.matryoshka)}, but the vectors of {settings.backbone} "
                f"have {width}; set it to dimensions up to {width}"
            )
        return config

    @classmethod
    def head_layer(cls, recipe: Recipe, backbone: PreTrainedModel) -> DenseConfig:
        """The settings of a new head, for training only or kept."""
        width = backbone.config.hidden_size
        return DenseConfig(width, width)

    @classmethod
    def build_views(cls, recipe: Recipe, backbone: PreTrainedModel) -> Views | None:
        """The view module, if the views differ inside the encoder."""
        return new_views(recipe, backbone)

    def initialise(self, *modules: nn.Module | None) -> None:
        """Initialise new layers; see `normal_init`."""
        for module in modules:
            if module is not None and self.normal_init:
                init_normal(module, initializer_range(self.encoder.backbone))

    def roles(self) -> dict[str, nn.Module]:
        modules = {
            "backbone": self.encoder.backbone,
            "views": self.encoder.views,
            "projection": self.projection or self.encoder.head,
            "head": self.encoder.head if self.projection else None,
            "classifier": self.classifier,
        }
        return {role: m for role, m in modules.items() if m is not None and any(True for _ in m.parameters())}

    def represent(self, batch: TokenBatch) -> Tensor:
        return self.encoder.represent(batch, pooling=self.recipe.model.train_pooling)

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the table of bare templates for inference with the current weights."""
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
        if first is not None and self.views_trained and not first.again:
            self.notes.append("stage 1 is left out: the model has trained views (stage1.again=true trains them again)")
            first = None
        aux = second is not None and second.aux_weight > 0
        labelled = corpus.related() if first is not None or aux else None
        found = []
        if first is not None:
            assert labelled is not None
            steps = first.max_steps if first.steps == "auto" else first.steps
            if steps is None:
                steps = self._steps(first.epochs, labelled, first.batch_size)
            found.append(
                Stage(
                    number=1,
                    steps=steps,
                    streams={"nli": (labelled, first.batch_size)},
                    learning_rates={self.stage1_learns: first.learning_rate, "classifier": first.learning_rate},
                    schedule_steps=steps,
                    warmup=first.warmup,
                    weight_decay=first.weight_decay,
                    selects=self.recipe.released.best_from_stage1,
                    measures_views=True,
                    automatic=first.steps == "auto",
                    from_epochs=first.steps is None,
                )
            )
        if second is not None:
            contrastive = self.contrastive_examples(corpus)
            streams: dict[str, tuple[Examples | Mixture, int]] = {"contrastive": (contrastive, second.batch_size)}
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
                    from_epochs=second.steps is None,
                )
            )
        return found

    def stage2_learns(self) -> list[str]:
        """The roles that stage 2 trains unless the recipe freezes them; the classifier is added with its loss."""
        return [role for role in self.roles() if role != "classifier"]

    def contrastive_examples(self, corpus: Corpus) -> Examples | Mixture:
        """The data of the contrastive loss."""
        assert self.recipe.stage2 is not None
        objective, views = self.recipe.stage2.objective, text_views(self.recipe.views.kind)
        if objective in ("unlabelled", "nli_sentences"):
            sentences = corpus.sentences if objective == "unlabelled" else corpus.nli_sentences
            return sentences(None if views is None else views.from_recipe(self.recipe))
        if views is not None:
            raise DiffaugError(
                f"{objective} have their own positives: for views.kind={self.recipe.views.kind} set stage2.objective "
                "to unlabelled or nli_sentences"
            )
        if objective == "triplets":
            return corpus.triplets()
        examples = corpus.labels()
        for part in examples.parts if isinstance(examples, Mixture) else (examples,):
            self._check_loss(part)
        return examples

    def _check_loss(self, examples: Examples) -> None:
        """Raise if the recipe's loss does not fit the labels."""
        assert self.recipe.stage2 is not None
        loss = self.recipe.stage2.label_loss
        classes, scores = (examples.labels is not None and examples.target == target for target in ("class", "score"))
        ranks = loss in ("cosent", "angle")
        if (scores and loss == "contrastive") or (
            ranks and (classes or (examples.labels is None and len(examples.columns) < 3))
        ):
            what = "classes" if classes else "scores" if scores else "pairs that all belong together"
            raise DiffaugError(f"stage2.label_loss={loss} cannot learn from {what}; set stage2.label_loss=auto")

    def _stage2_rates(self, aux: bool) -> dict[str, float]:
        assert self.recipe.stage2 is not None
        second, roles = self.recipe.stage2, self.roles()
        for setting, names in (("frozen", second.frozen), ("role_learning_rates", second.role_learning_rates)):
            if unknown := [name for name in names if name not in roles]:
                raise DiffaugError(f"stage2.{setting}: unknown role {unknown[0]!r}{nearest(unknown[0], roles)}")
        learning = [*self.stage2_learns(), *(["classifier"] if aux else [])]
        rates = {
            role: second.role_learning_rates.get(role, second.learning_rate)
            for role in learning
            if role not in second.frozen
        }
        if not any(True for role in rates for _ in roles[role].parameters()):
            raise DiffaugError(f"stage2.frozen leaves nothing to train; remove one of {', '.join(learning)} from it")
        return rates

    def _steps(self, epochs: float, examples: Examples | Mixture, batch_size: int) -> int:
        batches = max(1, len(examples) // min(batch_size, len(examples)))
        return max(1, round(epochs * batches / self.recipe.loop.accumulate))

    # What a step does

    def collate(self, stage: Stage, batches: Mapping[str, Batch]) -> StepBatch:
        """One forward for all: the sentences of the contrastive loss, of the NLI loss, and bare templates."""
        ids: list[list[int]] = []
        views: list[int] = []

        def add(sentences: Sequence[list[int]], view: int) -> slice:
            start = len(ids)
            ids.extend(sentences)
            views.extend([view] * len(sentences))
            return slice(start, len(ids))

        contrastive = pairs = templates = None
        if "contrastive" in batches:
            examples, labels = batches["contrastive"].examples, batches["contrastive"].labels
            if len(examples[0]) == 1:
                examples = [(sentence, sentence) for (sentence,) in examples]
            columns = list(zip(*examples, strict=True))
            for column, sentences in enumerate(columns):
                add(sentences, FIRST if column == 0 else SECOND)
            contrastive = ContrastiveRows(
                slice(0, len(ids)),
                len(columns),
                None if labels is None else torch.tensor(labels),
                batches["contrastive"].target,
            )
        if "nli" in batches:
            # Hypotheses are one column of pairs, or the entailments and then the contradictions of triplets.
            examples, labels = _with_negatives(batches["nli"])
            premises, *columns = zip(*examples, strict=True)
            pairs = LabelledPairs(
                add(premises, self.pair_views[0]),
                add([sentence for column in columns for sentence in column], self.pair_views[1]),
                torch.tensor(labels or [1] * len(premises) + [0] * len(premises)),
            )
        if not self._views_differ():
            views = [FIRST] * len(ids)
        tokens = self.collator.rows(ids, views)
        if contrastive is not None and self._denoises():
            kinds, index = self._bare_templates(ids[contrastive.rows], views[contrastive.rows])
            tokens = concatenate(tokens, self.collator.bare_templates(*zip(*kinds, strict=True)))
            templates = BareTemplates(slice(len(ids), len(tokens)), index)
        return StepBatch(tokens, contrastive, pairs, templates)

    def _views_differ(self) -> bool:
        """Whether the views differ by more than dropout: by a module, or by templates of their own."""
        module = self.encoder.views is not None and not self.recipe.views.same
        return module or len(self.collator.templates) > 1

    def bare_length(self, length: int) -> int:
        """The sentence length that the bare template of a sentence of this length stands for."""
        return length

    def _denoises(self) -> bool:
        second = self.recipe.stage2
        return second is not None and second.denoise and self.encoder.config.template is not None

    def _bare_templates(
        self, ids: Sequence[Sequence[int]], views: Sequence[int]
    ) -> tuple[list[tuple[int, int]], Tensor]:
        """The distinct (length, view) of a batch, each of which needs a bare template, and the index of each row's."""
        wanted = list(zip(map(len, ids), views, strict=True))
        place = {kind: i for i, kind in enumerate(dict.fromkeys(wanted))}
        kinds = [(self.bare_length(length), view) for length, view in place]
        return kinds, torch.tensor([place[kind] for kind in wanted])

    def losses(self, stage: Stage, batch: StepBatch, encode: Encode) -> dict[str, Tensor]:
        vectors = encode(batch.tokens)
        found: dict[str, Tensor] = {}
        if batch.contrastive is not None:
            states = vectors[batch.contrastive.rows]
            if batch.templates is not None:
                states = self.subtract_templates(states, vectors[batch.templates.rows], batch.templates.index)
            found |= self.contrast(states, batch)
        if batch.pairs is not None:
            found["nli"] = self.classify(vectors, batch.pairs)
        found["loss"] = self.total(found)
        return found

    def classify(self, vectors: Tensor, pairs: LabelledPairs) -> Tensor:
        """The cross entropy of the labelled pairs."""
        assert self.classifier is not None
        premises = self.pair_vectors(vectors[pairs.premises])
        hypotheses = self.pair_vectors(vectors[pairs.hypotheses])
        premises = premises.repeat(len(hypotheses) // len(premises), 1)
        logits = self.classifier(pair_features(premises, hypotheses))
        labels = pairs.labels
        if labels.is_floating_point():  # a score is the probability that the two belong together
            labels = torch.stack([1 - labels, labels], dim=-1)
        return F.cross_entropy(logits.float(), labels)

    def pair_vectors(self, vectors: Tensor) -> Tensor:
        """The vectors that the classifier reads: (sequences, hidden size) -> the same shape."""
        return vectors

    def subtract_templates(self, states: Tensor, bare: Tensor, index: Tensor) -> Tensor:
        """Denoising: the states of sentences minus those of their bare templates.

        Args:
            states: (sentences, hidden size)
            bare: (distinct bare templates, hidden size)
            index: (sentences,), the bare template of each sentence.
        """
        return states - bare[index]

    def project(self, states: Tensor) -> Tensor:
        """Pooled states to the vectors of the contrastive loss."""
        states = self.encoder.head(states)
        return states if self.projection is None else self.projection(states)

    def projected(self, states: Tensor) -> list[tuple[float, Tensor]]:
        """The vectors of the contrastive loss, with weight 1; with Matryoshka, those of each dimension and its weight.

        A projection is dropped after training, so its inputs are truncated: their other components become zero.
        Otherwise the vectors themselves are truncated and scaled to length 1.
        """
        second = self.recipe.stage2
        assert second is not None
        if not second.matryoshka:
            return [(1.0, self.project(states))]
        vectors = self.encoder.head(states) if self.projection is not None else self.project(states)
        found = []
        for size, weight in zip(
            second.matryoshka, second.matryoshka_weights or [1.0] * len(second.matryoshka), strict=True
        ):
            truncated = vectors[:, :size]
            if self.projection is not None:
                truncated = self.projection(F.pad(truncated, (0, vectors.shape[1] - size)))
            else:
                truncated = F.normalize(truncated.float(), dim=-1)
            found.append((weight, truncated))
        return found

    def contrast(self, states: Tensor, batch: StepBatch) -> dict[str, Tensor]:
        """The losses of the contrastive part of a step, by name.

        Args:
            states: (contrastive sequences, hidden size).
            batch: the whole step; ``batch.contrastive`` says what the sequences are.
        """
        assert batch.contrastive is not None
        labels, target = batch.contrastive.labels, batch.contrastive.target
        if labels is not None:
            labels = gather_rows(labels)
        losses = []
        for weight, projected in self.projected(states):
            vectors = [gather_rows(column) for column in batch.contrastive.split(projected)]
            losses.append(weight * self.label_loss(vectors, labels, target))
        return {"contrastive": torch.stack(losses).sum()}

    def label_loss(self, vectors: list[Tensor], labels: Tensor | None, target: Target) -> Tensor:
        """The contrastive loss of one kind of data.

        Args:
            vectors: anchors, positives and, if any, hard negatives, each (n, width).
            labels: (n,), if the pairs do not all belong together.
            target: what the labels are.
        """
        assert self.recipe.stage2 is not None
        kind, temperature = self.recipe.stage2.label_loss, self.recipe.stage2.temperature
        if labels is None and kind in ("auto", "contrastive"):
            return self.contrastive_loss(*vectors)
        first, second, *negatives = vectors
        if labels is None:
            labels = torch.cat([second.new_ones(len(second)), second.new_zeros(len(second))])
            first, second = first.repeat(2, 1), torch.cat([second, *negatives])
        if target == "class":
            return supervised_contrastive(first, second, labels, temperature)
        if kind == "contrastive":
            rows = torch.arange(len(first), device=first.device)
            return supervised_contrastive(first, second, rows, temperature, relevant=labels > 0)
        return (angle if kind == "angle" else cosent)(first, second, labels, temperature)

    def contrastive_loss(self, anchors: Tensor, positives: Tensor, negatives: Tensor | None = None) -> Tensor:
        """The loss that the recipe names, or that of the method: (examples, width) each -> a scalar."""
        second = self.recipe.stage2
        assert second is not None
        name = second.loss or self.default_loss
        loss: Tensor = LOSSES.get(name)(anchors, positives, negatives, second.temperature, **second.loss_options)
        return loss

    def total(self, found: Mapping[str, Tensor]) -> Tensor:
        """The loss that is minimised, from the losses of a step."""
        if "contrastive" not in found:
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


def _with_negatives(batch: Batch) -> tuple[list[Example], list[float] | None]:
    """The examples of "do these two belong together" and their labels; data without negatives become triplets.

    Of sentences with a class, the positive is the next one of the class and the negative the next one of another class.
    Of pairs that all belong together, the negative is the next positive that differs.
    """
    examples, count = batch.examples, len(batch.examples)

    def following(i: int, fits: Callable[[int], bool]) -> int:
        return next((j for j in (*range(i + 1, count), *range(i)) if fits(j)), i)

    if batch.target == "class" and batch.labels is not None:
        labels = batch.labels
        triplets = []
        for i, (sentence,) in enumerate(examples):
            same = following(i, lambda j: labels[j] == labels[i])  # noqa: B023 - called at once
            other = following(i, lambda j: labels[j] != labels[i])  # noqa: B023
            triplets.append((sentence, *examples[same], *examples[other]))
        return triplets, None
    if batch.labels is None and len(examples[0]) == 2:
        others = [following(i, lambda j: examples[j][1] != examples[i][1]) for i in range(count)]  # noqa: B023
        return [(*pair, examples[other][1]) for pair, other in zip(examples, others, strict=True)], None
    return examples, batch.labels


def _described(views: ViewsConfig | None) -> str:
    if views is None:
        return "no learned views"
    values = ", ".join(f"{name} {value}" for name, value in asdict(views).items())
    name = next(part for part, kind in VIEW_PARTS.items() if isinstance(views, kind))
    return f"{name.replace('_views', '')} views ({values})"
