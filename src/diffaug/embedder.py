"""`Embedder`: load a model, encode sentences, compare and search them, save the model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from diffaug.errors import DiffaugError
from diffaug.inference.onnx_runner import is_onnx_export, load_onnx
from diffaug.inference.runner import Runner, TorchRunner, Vectors, run_parallel
from diffaug.models.classifier import Classifier, ClassifierKind
from diffaug.models.config import ModelConfig, Pooling, Provenance
from diffaug.models.encoder import Encoder
from diffaug.models.io.fetch import EMBEDDED_MODEL, find_folder
from diffaug.models.io.foreign import is_sentence_transformers, load_sentence_transformers, load_transformers
from diffaug.models.io.saved import is_saved_model, load_model, save_model
from diffaug.models.io.start import refuse_run_folder
from diffaug.progress import progress_bar

# Sentences that are tokenised and sorted by length at a time: enough that most batches need no padding, few enough that
# the tokens need little memory.
_WINDOW = 16_384
# Tokens per batch if the caller gives no batch size. On a CPU the activations should fit its cache; on a GPU a batch
# should be large enough to use all cores.
_TOKEN_BUDGET = {"cpu": 2_048, "cuda": 65_536, "mps": 16_384}
# Similarities in memory at a time during a search.
_SEARCH_BLOCK = 1 << 24

Backend = Literal["torch", "onnx"]


@dataclass(frozen=True)
class Hit:
    """A search result: the index in the corpus and the cosine similarity to the query."""

    index: int
    score: float


class Embedder:
    """Encodes sentences as vectors.

    Create one with `Embedder.from_pretrained`.

    Examples:
        >>> embedder = Embedder.from_pretrained()
        >>> embedder.encode(["A dog runs.", "The market fell."]).shape
        (2, 256)
    """

    def __init__(
        self,
        encoder: Encoder | Runner,
        tokenizer: PreTrainedTokenizerBase,
        provenance: Provenance | None = None,
        *,
        device: str | torch.device | None = None,
    ) -> None:
        self.runner = encoder if isinstance(encoder, Runner) else TorchRunner(encoder)
        self.runner.move(device)
        self.tokenizer = tokenizer
        self.provenance = provenance or Provenance()
        self.collator = self.runner.collator(tokenizer)
        self.classifier: Classifier | None = None
        self._warned_truncated = False

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str] | None = None,
        *,
        pooling: Pooling | None = None,
        template: str | None = None,
        backend: Backend | None = None,
        device: str | torch.device | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
    ) -> Embedder:
        """Load a model. A local folder and the default model need no download.

        Args:
            name_or_path: a folder saved by diffaug, sentence-transformers or transformers, an ONNX export, or a name
                on the hub; default: the small encoder included in the package.
            pooling: pooling of a plain transformers model, which does not define it (default ``mean``, or ``mask``
                with a template).
            template: template of a plain transformers model, with ``{}`` and ``[MASK]``.
            backend: ``torch``, or ``onnx`` for ONNX Runtime; default: the one the model was saved for. A model that
                was saved for the other backend is an error.
            device: device to run on; default: the GPU if there is one, and the CPU with ONNX Runtime.
            trust_remote_code: run Python code that comes with the model. Off by default.
            revision: branch, tag or commit of a model on the hub.

        Raises:
            DiffaugError: the model cannot be loaded completely; the message gives the reason.
        """
        source = str(EMBEDDED_MODEL if name_or_path is None else name_or_path)
        folder = find_folder(source, revision)
        refuse_run_folder(source, folder)
        onnx = is_onnx_export(folder)
        _check_backend(source, backend, onnx)
        if onnx or is_saved_model(folder) or is_sentence_transformers(folder):
            if pooling is not None or template is not None:
                raise DiffaugError(f"{source} has its own pooling and template; leave out pooling and template")
            if onnx:
                return cls(*load_onnx(folder), device=device)
            if is_saved_model(folder):
                embedder = cls(*load_model(folder), device=device)
                embedder.classifier = Classifier.load(folder, embedder.width)
                return embedder
            return cls(*load_sentence_transformers(folder, trust_remote_code=trust_remote_code), device=device)
        config = ModelConfig(
            pooling=pooling or ("mean" if template is None else "mask"),
            template=template,
            final_stop=template is not None,
        )
        plain = load_transformers(str(folder), config, trust_remote_code=trust_remote_code, revision=revision)
        return cls(*plain, device=device)

    def __repr__(self) -> str:
        limit = self.collator.max_length
        cut = "" if limit is None else f", truncates at {limit} tokens"
        return f"Embedder(width {self.width}{cut}, on {self.device})"

    @property
    def width(self) -> int:
        """The length of a vector."""
        return self.runner.width

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.runner.device

    @property
    def encoder(self) -> Encoder:
        """The PyTorch module itself, not a copy.

        Raises:
            DiffaugError: the model runs in ONNX Runtime and has no PyTorch module.
        """
        return self.runner.encoder

    def fingerprint(self) -> str:
        """A hash, in hex, of everything that determines the vectors: models with the same hash are the same model."""
        return self.runner.fingerprint()

    def encode(
        self,
        sentences: str | Iterable[str],
        batch_size: int | None = None,
        *,
        normalize: bool = True,
        show_progress: bool | None = None,
        device: str | torch.device | None = None,
        devices: Sequence[str | torch.device] | None = None,
    ) -> Vectors:
        """Encode sentences.

        Each distinct sentence is encoded once. Sentences are batched by length, whatever their order.

        Args:
            sentences: one sentence, or an iterable of sentences.
            batch_size: sentences per batch; default: as many as fit the device's token budget.
            normalize: scale the vectors to length 1, so that a dot product is the cosine.
            show_progress: show a progress bar on standard error; default: only on a terminal and for long work.
            device: move the model to this device first.
            devices: use several devices in parallel, for example ``["cuda:0", "cuda:1"]``. Each gets a thread and a
                temporary copy of the model; the model itself is not moved. A device may be listed several times;
                copies on the CPU share its threads.

        Returns:
            float32, in input order: (number of sentences, width), or (width,) for a single string.

        Raises:
            DiffaugError: an input is not a string, the batch size is below 1, or the model cannot run on a device.
        """
        if isinstance(sentences, str):
            return self.encode(
                [sentences], batch_size, normalize=normalize, show_progress=False, device=device, devices=devices
            )[0]
        if batch_size is not None and batch_size < 1:
            raise DiffaugError(f"batch_size must be at least 1, got {batch_size}")
        runners = self._runners(device, devices)
        texts = sentences if isinstance(sentences, list) else list(sentences)
        first = _first_occurrences(texts)
        distinct = np.flatnonzero(first == np.arange(len(first)))
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        truncated = 0

        def batches() -> Iterator[tuple[NDArray[np.int64], list[list[int]]]]:
            """Indices in ``texts``, and the token ids of these sentences."""
            nonlocal truncated
            for start in range(0, len(distinct), _WINDOW):
                window = distinct[start : start + _WINDOW]
                ids, too_long = self.collator.ids([texts[i] for i in window])
                truncated += too_long
                lengths = [len(row) for row in ids]
                for batch in self.batches(lengths, batch_size, [runner.device for runner in runners]):
                    yield window[batch], [ids[i] for i in batch]

        with progress_bar("embedding", len(distinct), show_progress) as advance:

            def embed(runner: Runner, batch: tuple[NDArray[np.int64], list[list[int]]]) -> None:
                indices, ids = batch
                found = runner(self.collator.rows(ids))
                vectors[indices] = _unit(found) if normalize else found
                advance(len(indices))

            run_parallel(batches(), runners, embed)
        repeated = np.flatnonzero(first != np.arange(len(first)))
        for block in np.array_split(repeated, len(repeated) // _WINDOW + 1):
            vectors[block] = vectors[first[block]]
        if truncated and not self._warned_truncated:
            self._warned_truncated = True
            warnings.warn(
                f"{truncated:,} of {len(distinct):,} distinct sentences were truncated to {self.collator.max_length} "
                "tokens (this warning is shown once)",
                stacklevel=2,
            )
        return vectors

    def similarity(self, a: str | Iterable[str], b: str | Iterable[str]) -> Any:
        """Cosine similarities of sentences.

        Returns:
            a float for two strings, an array for a string and a list, a (len(a), len(b)) matrix for two lists.
        """
        cosines = self.encode(a) @ self.encode(b).T
        return float(cosines) if np.ndim(cosines) == 0 else cosines

    @overload
    def search(self, corpus: Iterable[str] | Vectors, queries: str, k: int = ...) -> list[Hit]: ...  # type: ignore[overload-overlap]
    @overload
    def search(self, corpus: Iterable[str] | Vectors, queries: Iterable[str], k: int = ...) -> list[list[Hit]]: ...

    def search(
        self, corpus: Iterable[str] | Vectors, queries: str | Iterable[str], k: int = 10
    ) -> list[Hit] | list[list[Hit]]:
        """The ``k`` entries of a corpus most similar to each query, best first; ties are in corpus order.

        Args:
            corpus: sentences, or their vectors from an earlier `encode`, which are not normalised again.
            queries: one query or several.
            k: number of results; fewer are returned if the corpus is smaller.
        """
        if k < 1:
            raise DiffaugError(f"k must be at least 1, got {k}")
        if isinstance(corpus, str):
            raise DiffaugError("corpus must be a list of sentences, got a single string")
        documents = corpus if isinstance(corpus, np.ndarray) else self.encode(corpus)
        if documents.ndim != 2 or documents.shape[1] != self.width:
            raise DiffaugError(f"corpus vectors must have the shape (n, {self.width}), got {documents.shape}")
        if isinstance(queries, str):
            return self._search(documents, self.encode([queries]), k)[0]
        return self._search(documents, self.encode(queries), k)

    def fit_classifier(
        self, sentences: Iterable[str], classes: Sequence[str], kind: ClassifierKind = "logistic", c: float = 16.0
    ) -> None:
        """Learn classes of sentences on the model's vectors, which stay as they are; `save` saves the classifier too.

        Args:
            sentences: examples.
            classes: the class of each.
            kind: ``logistic`` regression, or ``prototypes``: the class whose mean vector is nearest.
            c: inverse strength of the L2 penalty.
        """
        self.classifier = Classifier.fit(self.encode(sentences), classes, kind, c)

    @overload
    def predict(self, sentences: str) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, sentences: Iterable[str]) -> list[str]: ...

    def predict(self, sentences: str | Iterable[str]) -> str | list[str]:
        """The class of each sentence, for a model trained on sentences with a class or after `fit_classifier`."""
        best = self.predict_probabilities(sentences).argmax(-1)
        assert self.classifier is not None
        names = self.classifier.names
        return names[int(best)] if isinstance(sentences, str) else [names[i] for i in best]

    def predict_probabilities(self, sentences: str | Iterable[str]) -> Vectors:
        """The probability of each class of ``classifier.names``: (sentences, classes), or (classes,) for a string.

        Raises:
            DiffaugError: the model has no classifier.
        """
        if self.classifier is None:
            raise DiffaugError("this model has no classifier; train on sentences with a class, or call fit_classifier")
        return self.classifier.probabilities(self.encode(sentences))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Save the model and everything inference needs in one folder, atomically.

        Raises:
            DiffaugError: the folder exists and ``overwrite`` is off, or it cannot be written.
        """
        save_model(
            Path(path), self.encoder, self.tokenizer, self.provenance, classifier=self.classifier, overwrite=overwrite
        )

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        branch: str | None = None,
        token: str | None = None,
        license: str | None = None,
        report: Mapping[str, Any] | None = None,
        card: str | None = None,
        message: str | None = None,
    ) -> str:
        """Push the model to the hub, with a model card made from its recipe and scores.

        Args:
            repo_id: ``owner/name``; the repository is created if it does not exist.
            private: whether a new repository is private; default: as in the owner's settings.
            branch: branch to push to, created if it does not exist; default: the main branch.
            token: token with write access; default: ``HF_TOKEN`` or the token of ``hf auth login``.
            license: licence for the card, such as ``mit`` or ``apache-2.0``.
            report: scores for the card, as returned by `diffaug.evaluate(...).to_dict()`.
            card: the text of your own card, instead of the generated one.
            message: the commit message.

        Returns:
            the URL of the commit.

        Raises:
            DiffaugError: there is no token, no write access, or no connection to the hub.
        """
        from diffaug.hub.push import push

        return push(
            self,
            repo_id,
            private=private,
            branch=branch,
            token=token,
            license=license,
            report=report,
            card=card,
            message=message,
        )

    def batches(
        self, lengths: list[int], batch_size: int | None = None, devices: Sequence[torch.device] | None = None
    ) -> Iterator[list[int]]:
        """Indices of the sentences of each batch, longest first, so that memory runs out in the first batch or never.

        Args:
            lengths: number of tokens of each sentence.
            batch_size: as for `encode`.
            devices: devices that the batches are for; default: the model's device.
        """
        devices = devices or [self.device]
        around = len(self.collator.template)
        budget = min(_TOKEN_BUDGET.get(device.type, _TOKEN_BUDGET["cpu"]) for device in devices)
        if len(devices) > 1:
            # At least two batches per device, so that all are used until the end.
            budget = min(budget, (sum(lengths) + around * len(lengths)) // (2 * len(devices)))
        batch: list[int] = []
        for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
            if batch:
                width = lengths[batch[0]] + around
                if batch_size is None:
                    # If the batch is at least half full, a new length starts a new batch, which avoids padding.
                    room = budget if lengths[i] == lengths[batch[0]] else budget // 2
                    full = (len(batch) + 1) * width > room
                else:
                    full = len(batch) == batch_size
                if full:
                    yield batch
                    batch = []
            batch.append(i)
        if batch:
            yield batch

    def _runners(self, device: str | torch.device | None, devices: Sequence[str | torch.device] | None) -> list[Runner]:
        """The runner of this model, or copies of it on several devices."""
        if devices is not None:
            if device is not None:
                raise DiffaugError("give either device or devices, not both")
            if isinstance(devices, str) or not devices:
                raise DiffaugError(f'devices must be a list such as ["cuda:0", "cuda:1"], got {devices!r}')
            return [self.runner.on(each) for each in devices]
        if device is not None:
            self.runner.move(device)
        return [self.runner]

    @staticmethod
    def _search(documents: Vectors, queries: Vectors, k: int) -> list[list[Hit]]:
        found: list[list[Hit]] = []
        step = max(1, _SEARCH_BLOCK // max(1, len(documents)))
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            for query, scores in zip(block, block @ documents.T, strict=True):
                candidates = np.arange(len(documents))
                if k < len(documents):
                    # Rounding in a matrix product depends on the position, so equal documents may differ slightly.
                    near = np.partition(scores, -k)[-k] - 1e-6 * max(1.0, np.abs(scores).max())
                    candidates = np.flatnonzero(scores >= near)
                # In double precision equal documents have equal scores, so that ties are in corpus order.
                exact = np.einsum("ij,j->i", documents[candidates], query, dtype=np.float64).astype(np.float32)
                best = np.argsort(-exact, kind="stable")[:k]
                found.append([Hit(int(candidates[i]), float(exact[i])) for i in best])
        return found


def _first_occurrences(texts: list[str]) -> NDArray[np.int64]:
    """For each text, the index of the first equal text."""
    seen: dict[str, int] = {}
    first = np.empty(len(texts), dtype=np.int64)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise DiffaugError(f"sentence {i} must be a string, got {type(text).__name__}: {text!r:.80}")
        first[i] = seen.setdefault(text, i)
    return first


def _check_backend(source: str, backend: Backend | None, onnx: bool) -> None:
    if backend not in (None, *get_args(Backend)):
        raise DiffaugError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    if backend == "torch" and onnx:
        raise DiffaugError(
            f"{source} is an ONNX export, which PyTorch cannot run; load the original model, or leave out backend"
        )
    if backend == "onnx" and not onnx:
        raise DiffaugError(f"{source} is not an ONNX export; create one: diffaug export --to onnx {source} FOLDER")


def _unit(vectors: Vectors) -> Vectors:
    """Scale vectors to length 1; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)
