"""What does a training step cost, beside SimCSE and beside DiffAug as it was released?

Random weights of BERT's shape, random words in sentences as long as those of the sample triplets, the same for all;
optimiser, clipping and precision are the same too.
Sides, each a whole optimiser step on triplets:

- sentence-transformers: its model and its MultipleNegativesRankingLoss, on sentences tokenised beforehand;
- plain SimCSE: transformers' BertModel on one padded batch;
- released: DiffAug as its released code computes it (`released_way.py`);
- plain: ours in one padded pass, as it runs where the fast path cannot;
- ours: as `diffaug train` runs it.

    python benchmarks/train.py                       # BERT-base, 128 triplets, and how the cost grows
    python benchmarks/train.py --model mini --device cpu --steps 3 --rounds 3 --no-growth
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from common import save
from released_way import ReleasedWay
from torch import Tensor, nn
from transformers import AutoTokenizer, BertConfig, BertModel

from diffaug.config import load_recipe
from diffaug.data.read import read_nli
from diffaug.data.sampling import Batch
from diffaug.losses.contrastive import info_nce
from diffaug.methods import method_class
from diffaug.methods.base import Stage, StepBatch
from diffaug.methods.twostage import TwoStage
from diffaug.models.io.fetch import EMBEDDED_MODEL
from diffaug.training.execution.executor import fast_executor, plain_executor
from diffaug.training.optimizer import build_optimizer, trainable
from diffaug.training.precision import Precision
from diffaug.training.prefetch import Prefetcher

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SHAPES = {"mini": (6, 256, 4), "small": (6, 512, 8), "base": (12, 768, 12)}
# Multiplications and additions a second in bf16, without sparsity, as the maker states them.
PEAK = {"NVIDIA H200": 989e12, "NVIDIA H100": 989e12, "NVIDIA A100": 312e12}
Step = Callable[[], None]


def random_backbone(model: str) -> BertModel:
    """BERT of that shape, with the same random weights every time."""
    layers, width, heads = SHAPES[model]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    return BertModel(config, add_pooling_layer=False)


class Bench:
    """Triplets and models of one size."""

    def __init__(self, model: str, triplets: int, length: int, device: str, batches: int = 8, seed: int = 0) -> None:
        self.model, self.triplets, self.length = model, triplets, length
        self.device = torch.device(device)
        self.precision = Precision("auto", self.device)
        self.tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
        chance = random.Random(seed)
        lengths = self._lengths()
        pieces = range(1000, len(self.tokenizer) - 1)
        self.batches = [
            [tuple(chance.choices(pieces, k=k) for k in chance.choice(lengths)) for _ in range(triplets)]
            for _ in range(batches)
        ]

    def _lengths(self) -> list[tuple[int, ...]]:
        """Word pieces of the sample triplets' sentences, scaled to the mean asked for."""
        triplets = read_nli("sample:triplets")
        ids = self.tokenizer([sentence for row in triplets for sentence in row], add_special_tokens=False)["input_ids"]
        pieces = [min(len(row), 32) for row in ids]
        scaled = [max(1, round(count * self.length / statistics.mean(pieces))) for count in pieces]
        return list(zip(scaled[::3], scaled[1::3], scaled[2::3], strict=True))

    def method(self, recipe: str) -> TwoStage:
        changes = [f"data.max_length={3 * self.length}"]
        settings = load_recipe(recipe, changes)
        method = (
            method_class(settings.method).build(settings, random_backbone(self.model), self.tokenizer).to(self.device)
        )
        assert isinstance(method, TwoStage)
        return method

    def optimised(self, parameters: list[nn.Parameter], losses: Callable[[int], Tensor]) -> Step:
        """A plain loop's step."""
        optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=self.device.type == "cuda" or None)
        number = iter(range(10**9))

        def step() -> None:
            with self.precision.autocast():
                loss = losses(next(number) % len(self.batches))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    # The sides

    def sentence_transformers(self) -> Step:
        from sentence_transformers import SentenceTransformer, losses, models

        with tempfile.TemporaryDirectory() as folder:
            random_backbone(self.model).save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            transformer = models.Transformer(folder, max_seq_length=3 * self.length + 2)
        pooling = models.Pooling(SHAPES[self.model][1], "cls")
        model = SentenceTransformer(modules=[transformer, pooling], device=str(self.device)).train()
        loss = losses.MultipleNegativesRankingLoss(model)
        start, end = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        features = [
            [self._padded([[start, *sentence, end] for sentence in column]) for column in zip(*batch, strict=True)]
            for batch in self.batches
        ]
        labels = torch.arange(self.triplets, device=self.device)
        return self.optimised(list(model.parameters()), lambda i: loss([dict(f) for f in features[i]], labels))

    def plain_simcse(self) -> Step:
        backbone = random_backbone(self.model).to(self.device).train()
        head = nn.Sequential(nn.Linear(backbone.config.hidden_size, backbone.config.hidden_size), nn.Tanh())
        head.to(self.device)
        start, end = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        inputs = [
            self._padded([[start, *example[k], end] for k in range(3) for example in batch]) for batch in self.batches
        ]

        def losses(i: int) -> Tensor:
            states = head(backbone(**inputs[i]).last_hidden_state[:, 0])
            return info_nce(*states.chunk(3))

        return self.optimised([*backbone.parameters(), *head.parameters()], losses)

    def released(self) -> Step:
        method = self.method("diffaug-sup")
        method.begin(self.stage(method, 2))
        # 128 lengths, as in the release, but for sentences that are longer than any there.
        released = ReleasedWay(method.encoder, method.collator.template, max(128, 3 * self.length + 1))
        head = method.projection
        assert head is not None
        inputs = [released.collate(list(zip(*batch, strict=True)), self.device) for batch in self.batches]

        def losses(i: int) -> Tensor:
            return info_nce(*head(released(**inputs[i])).chunk(3))

        return self.optimised([*released.parameters(), *head.parameters()], losses)

    def ours(self, recipe: str, number: int, fast: bool) -> tuple[Step, Callable[[], None]]:
        """A step of the loop, and what ends its thread."""
        method = self.method(recipe)
        stage = self.stage(method, number)
        learning = trainable(method, stage)
        parameters = list(learning.values())
        optimizer = build_optimizer(method, stage)
        method.begin(stage)
        make = fast_executor(method, stage, self.precision, self.device, learning) if fast else None
        executor = make() if make else plain_executor(method, stage, self.precision)
        stream = "nli" if number == 1 else "contrastive"

        def prepare(index: int) -> StepBatch:
            batch: Any = self.batches[index % len(self.batches)]
            examples = Batch([tuple(map(list, example)) for example in batch])
            return executor.prepare(method.collate(stage, {stream: examples}))

        prefetcher = Prefetcher(prepare, 10**9)
        count = iter(range(10**9))

        def step() -> None:
            batch = prefetcher(next(count)).to(self.device)
            with self.precision.autocast():
                loss = method.losses(stage, batch, executor)["loss"]
            self.precision.backward(loss)
            executor.backward()
            self.precision.step(optimizer, parameters, 1.0)

        return step, prefetcher.close

    def stage(self, method: TwoStage, number: int) -> Stage:
        learning = ["views", "classifier"] if number == 1 else [r for r in method.roles() if r != "classifier"]
        return Stage(number, 1, {}, dict.fromkeys(learning, 1e-5), 1)

    def _padded(self, rows: list[list[int]]) -> dict[str, Tensor]:
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}

    # Measuring

    def measure(self, step: Step, steps: int, template: int = 0, passes: int = 6, rows: int = 3) -> dict[str, float]:
        """Milliseconds a step, triplets a second, gibibytes at the most, and the share of the arithmetic peak.

        The arithmetic is that of all tokens in all layers, for every side: what one leaves out counts as done.

        Args:
            step: what to run.
            steps: how often, after a few to warm up, on a GPU one at least for each batch, whose size is recorded.
            template: tokens around a sentence that it has to compute.
            passes: multiplications and additions a parameter and token: 6 with all gradients, 4 without the weights'.
            rows: sentences a triplet.
        """
        for _ in range(2 + (len(self.batches) if self.device.type == "cuda" else 0)):
            step()
        self._wait()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        self._wait()
        seconds = (time.perf_counter() - start) / steps
        found = {"ms": round(1000 * seconds, 2), "triplets_a_second": round(self.triplets / seconds)}
        if self.device.type == "cuda":
            found["gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
            peak = next((flops for name, flops in PEAK.items() if name in torch.cuda.get_device_name()), None)
            if peak is not None:
                layers, width, _ = SHAPES[self.model]
                tokens = sum(len(s) + template for b in self.batches for e in b for s in e[:rows]) / len(self.batches)
                found["share_of_peak"] = round(passes * 12 * layers * width**2 * tokens / seconds / peak, 3)
        return found

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


# What kernels do, by parts of their names; the first that fits counts.
KINDS = {
    "embeddings": ("embedding", "Sort", "radix", "index", "grad_weight", "sum_and_scatter"),
    "layer norms, with dropout and sums": ("layer_norm", "_norm_backward", "_dropped_forward", "_sum"),
    "attention": ("_forward", "_backward"),
    "GELU": ("Gelu",),
    "dropout": ("dropout",),
    "matrix products": ("nvjet", "gemm", "cutlass", "splitK", "cublas"),
    "optimiser and clipping": ("multi_tensor_apply", "Adam"),
    "casts, copies, sums": ("elementwise", "copy", "Copy", "Memcpy", "Memset", "reduce"),
}


def profile(bench: Bench, steps: int) -> dict[str, float]:
    """Where the GPU's milliseconds of a step of stage 2 are."""
    step, close = bench.ours("diffaug-sup", 2, True)
    try:
        for _ in range(len(bench.batches) + 2):
            step()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(steps):
                step()
            torch.cuda.synchronize()
    finally:
        close()
    found: dict[str, float] = {}
    for event in profiler.key_averages():
        names = (kind for kind, parts in KINDS.items() if any(part in event.key for part in parts))
        kind = next(names, "other")
        found[kind] = found.get(kind, 0.0) + event.self_device_time_total / steps / 1000
    return {kind: round(ms, 2) for kind, ms in sorted(found.items(), key=lambda pair: -pair[1])}


def sides(bench: Bench, steps: int, only: tuple[str, ...] = ()) -> dict[str, dict[str, float]]:
    """All sides of one size, one after the other."""
    template = 10  # of `This sentence of "{}" means [MASK].` and the special tokens
    found: dict[str, dict[str, float]] = {}

    def add(name: str, make: Callable[[], Any], **how: Any) -> None:
        if only and name not in only:
            return
        if bench.device.type == "cuda":
            # From before the model is there: what a graph needs is taken when it is recorded, and not seen later.
            # And after all of the side before: a model in a circle of references would still count.
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        made = make()
        step, close = made if isinstance(made, tuple) else (made, lambda: None)
        try:
            found[name] = bench.measure(step, steps, **how)
        finally:
            close()
        del made, step
        print(f"  {name:32s}", found[name], flush=True)

    try:
        add("sentence-transformers SimCSE", bench.sentence_transformers, template=2)
    except ImportError as error:
        print(f"  sentence-transformers is left out: {error}")
    add("plain SimCSE", bench.plain_simcse, template=2)
    add("SimCSE, ours", lambda: bench.ours("simcse-sup", 2, True), template=2)
    add("DiffAug stage 2, released", bench.released, template=template)
    add("DiffAug stage 2, plain", lambda: bench.ours("diffaug-sup", 2, False), template=template)
    add("DiffAug stage 2, ours", lambda: bench.ours("diffaug-sup", 2, True), template=template)
    add("DiffAug stage 1, plain", lambda: bench.ours("diffaug-sup", 1, False), template=template, passes=4)
    add("DiffAug stage 1, ours", lambda: bench.ours("diffaug-sup", 1, True), template=template, passes=4)
    return found


def medians(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Of every number over the rounds, and how many times faster ours is than each side."""
    found = {
        side: {key: statistics.median(one[side][key] for one in rounds) for key in values}
        for side, values in rounds[0].items()
    }
    for name, values in found.items():
        ours = found.get(f"{name.partition(',')[0]}, ours" if "stage 1" in name else "DiffAug stage 2, ours")
        if ours is not None:
            values["ours_is_faster"] = round(values["ms"] / ours["ms"], 2)
    return found


def growth(sizes: dict[str, Any], device: str, steps: int) -> dict[str, Any]:
    """What a step costs with more triplets, longer sentences, and smaller models."""
    only = ("plain SimCSE", "DiffAug stage 2, plain", "DiffAug stage 2, ours")
    # With the template and the special tokens, rows of 16, 32, 64 and 128 tokens.
    others: list[tuple[str, Any]] = [("triplets", n) for n in (64, 256, 512, 1024)]
    others += [("length", n) for n in (6, 22, 54, 118)] + [("model", "mini"), ("model", "small")]
    found: dict[str, Any] = {}
    for what, value in others:
        print(f"{what} {value}")
        bench = Bench(**(sizes | {what: value}), device=device, batches=4)
        found[f"{what} {value}"] = medians([sides(bench, steps, only)])
    return found


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="base")
    parser.add_argument("--triplets", type=int, default=128)
    parser.add_argument("--length", type=int, default=12, help="mean word pieces of a sentence, template not counted")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=1, help="sides take turns; medians count")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-growth", dest="growth", action="store_false")
    arguments = parser.parse_args()
    cuda, packages = arguments.device == "cuda", ("torch", "transformers", "sentence-transformers")
    sizes = {"model": arguments.model, "triplets": arguments.triplets, "length": arguments.length}
    print(f"BERT-{arguments.model}, {arguments.triplets} triplets, {arguments.length} word pieces")
    bench = Bench(**sizes, device=arguments.device)
    results: dict[str, Any] = {**sizes}
    results["sides"] = medians([sides(bench, arguments.steps) for _ in range(arguments.rounds)])
    if cuda:
        results["profile_ms"] = profile(bench, arguments.steps)
        print(results["profile_ms"])
    print(save("train" if cuda else "train_cpu", results, packages))
    if arguments.growth:
        found = {**sizes, "growth": growth(sizes, arguments.device, arguments.steps // 3)}
        print(save("train_growth" if cuda else "train_growth_cpu", found, packages))


if __name__ == "__main__":
    main()
