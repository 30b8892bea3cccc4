"""The front door: load a model, embed sentences, compare and search them, save."""

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
from diffaug.inference.runner import Runner, TorchRunner, Vectors, share_out
from diffaug.models.config import ModelConfig, Pooling, Provenance
from diffaug.models.encoder import Encoder
from diffaug.models.io.fetch import EMBEDDED_MODEL, find_folder
from diffaug.models.io.foreign import is_sentence_transformers, load_sentence_transformers, load_transformers
from diffaug.models.io.saved import is_saved_model, load_model, save_model
from diffaug.progress import progress_bar

# Sentences tokenised and sorted at a time: enough that almost every batch holds sentences of one length and needs no
# padding, few enough that their tokens take no memory to speak of.
_WINDOW = 16_384
# Tokens in a batch when the caller does not choose. On a CPU the layers' intermediate results should stay in its
# cache; on a GPU a batch should be large enough to keep it busy.
_TOKEN_BUDGET = {"cpu": 2_048, "cuda": 65_536, "mps": 16_384}
# Similarities held at a time while searching.
_SEARCH_BLOCK = 1 << 24

Backend = Literal["torch", "onnx"]


@dataclass(frozen=True)
class Hit:
    """A search result: the row of the corpus, and its cosine similarity to the query."""

    index: int
    score: float


class Embedder:
    """Turns sentences into vectors.

    Make one with `Embedder.from_pretrained`.

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
        self._said_truncated = False

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
        """Load a model. Nothing is downloaded for a path or for the embedded default.

        Args:
            name_or_path: a folder saved by diffaug, by sentence-transformers or by transformers, an export to ONNX,
                or a name on the hub; left out, the small encoder that comes with the package.
            pooling: for a plain transformers model, which says nothing about it: how token states become a vector
                (default ``mean``, or ``mask`` with a template).
            template: for a plain transformers model: a prompt with ``{}`` and ``[MASK]``.
            backend: what computes: ``torch``, or ``onnx`` for ONNX Runtime; left out, whatever the model was made for.
                With it, a model made for the other is an error.
            device: where to run; left out, the GPU if there is one, and the CPU with ONNX Runtime.
            trust_remote_code: run Python code that the model brings along. Off unless you ask for it.
            revision: the version of a model on the hub.

        Raises:
            DiffaugError: the model cannot be loaded completely; the message says why.
        """
        source = str(EMBEDDED_MODEL if name_or_path is None else name_or_path)
        folder = find_folder(source, revision)
        if (folder / "recipe.yaml").is_file() and is_saved_model(folder / "best"):
            raise DiffaugError(f"{source} is the folder of a run; its model is {Path(source) / 'best'}")
        onnx = is_onnx_export(folder)
        _check_backend(source, backend, onnx)
        if onnx or is_saved_model(folder) or is_sentence_transformers(folder):
            if pooling is not None or template is not None:
                raise DiffaugError(f"{source} carries its own pooling and template; they cannot be chosen again")
            if onnx:
                return cls(*load_onnx(folder), device=device)
            if is_saved_model(folder):
                return cls(*load_model(folder), device=device)
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
        cut = "" if limit is None else f", cut at {limit} word pieces"
        return f"Embedder({self.width} numbers a sentence{cut}, on {self.device})"

    @property
    def width(self) -> int:
        """The length of a vector."""
        return self.runner.width

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.runner.device

    @property
    def encoder(self) -> Encoder:
        """The PyTorch module, shared and not copied.

        Raises:
            DiffaugError: the model is run by ONNX Runtime, and there is none.
        """
        return self.runner.encoder

    def fingerprint(self) -> str:
        """A hash, in hex, of all that decides the vectors: two models with the same one are the same model."""
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
        """Embed sentences.

        Each distinct sentence is computed once, in batches of sentences of nearly equal length, whatever their order.

        Args:
            sentences: one sentence, or any number of them; a generator is read to its end.
            batch_size: sentences in a batch; left out, as many as fit a number of tokens that suits the device.
            normalize: scale vectors to length one, so that a dot product is the cosine.
            show_progress: a progress bar on standard error; left out, only on a terminal and for long work.
            device: move the model there first.
            devices: run on all of these at once, as in ``["cuda:0", "cuda:1"]``: a thread for each, with a copy of the
                model for the time of the call, takes the next batch when it is done with one. The model itself stays
                where it is. A device may be named several times; copies on the CPU divide its threads.

        Returns:
            float32, in the order given: (number of sentences, width), or (width,) for a single string.

        Raises:
            DiffaugError: something that is no string, a batch size below 1, or a device the model cannot run on.
        """
        if isinstance(sentences, str):
            return self.encode(
                [sentences], batch_size, normalize=normalize, show_progress=False, device=device, devices=devices
            )[0]
        if batch_size is not None and batch_size < 1:
            raise DiffaugError(f"batch_size must be at least 1, not {batch_size}")
        runners = self._runners(device, devices)
        texts = sentences if isinstance(sentences, list) else list(sentences)
        first = _first_occurrences(texts)
        distinct = np.flatnonzero(first == np.arange(len(first)))
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        cut = 0

        def batches() -> Iterator[tuple[NDArray[np.int64], list[list[int]]]]:
            """Places in ``texts``, and the word pieces of what stands there."""
            nonlocal cut
            for start in range(0, len(distinct), _WINDOW):
                window = distinct[start : start + _WINDOW]
                ids, too_long = self.collator.ids([texts[i] for i in window])
                cut += too_long
                lengths = [len(row) for row in ids]
                for batch in self.batches(lengths, batch_size, [runner.device for runner in runners]):
                    yield window[batch], [ids[i] for i in batch]

        with progress_bar("embedding", len(distinct), show_progress) as advance:

            def embed(runner: Runner, batch: tuple[NDArray[np.int64], list[list[int]]]) -> None:
                places, ids = batch
                found = runner(self.collator.rows(ids))
                vectors[places] = _unit(found) if normalize else found
                advance(len(places))

            share_out(batches(), runners, embed)
        repeated = np.flatnonzero(first != np.arange(len(first)))
        for block in np.array_split(repeated, len(repeated) // _WINDOW + 1):
            vectors[block] = vectors[first[block]]
        if cut and not self._said_truncated:
            self._said_truncated = True
            warnings.warn(
                f"{cut:,} of {len(distinct):,} distinct sentences have more than {self.collator.max_length} word "
                "pieces and were cut there (said once)",
                stacklevel=2,
            )
        return vectors

    def similarity(self, a: str | Iterable[str], b: str | Iterable[str]) -> Any:
        """Cosine similarities of sentences.

        Returns:
            a float for two strings, an array for a string and several, a (len(a), len(b)) matrix for several of both.
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
        """The ``k`` entries of a corpus most similar to each query, best first; equal ones in the corpus's order.

        Args:
            corpus: sentences, or their vectors from an earlier `encode` (searched as they are).
            queries: one query or several.
            k: how many to find; fewer come back if the corpus is smaller.
        """
        if k < 1:
            raise DiffaugError(f"k must be at least 1, not {k}")
        if isinstance(corpus, str):
            raise DiffaugError("the corpus is a single string; pass a list of sentences")
        documents = corpus if isinstance(corpus, np.ndarray) else self.encode(corpus)
        if documents.ndim != 2 or documents.shape[1] != self.width:
            raise DiffaugError(f"corpus vectors must be of shape (n, {self.width}), not {documents.shape}")
        if isinstance(queries, str):
            return self._search(documents, self.encode([queries]), k)[0]
        return self._search(documents, self.encode(queries), k)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Save the model with all that inference needs, in one folder, atomically.

        Raises:
            DiffaugError: the folder exists and ``overwrite`` is off, or it cannot be written.
        """
        save_model(Path(path), self.encoder, self.tokenizer, self.provenance, overwrite=overwrite)

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
        """Put the model on the hub, with a card written from its recipe and its scores.

        Args:
            repo_id: ``owner/name``; the repository is made if it is not there.
            private: who may see a new repository; left out, as its owner's settings say.
            branch: push to this branch, made if it is not there; left out, the main one.
            token: with the right to write; left out, ``HF_TOKEN`` or the one of ``hf auth login``.
            license: the model's licence, for the card: ``mit``, ``apache-2.0`` ...
            report: scores for the card, as `diffaug.evaluate(...).to_dict()` gives them.
            card: the text of a card of your own, in place of the one written for you.
            message: of the commit.

        Returns:
            the address of the commit.

        Raises:
            DiffaugError: no token, no right to write there, or no way to reach the hub.
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
        """Indices of sentences for one batch after another, longest first, so that memory runs out at once or never.

        Args:
            lengths: word pieces of each sentence.
            batch_size: as for `encode`.
            devices: where the batches will run, if not on the model's own device.
        """
        devices = devices or [self.device]
        around = len(self.collator.template)
        budget = min(_TOKEN_BUDGET.get(device.type, _TOKEN_BUDGET["cpu"]) for device in devices)
        if len(devices) > 1:
            # A few batches for each, or some would have nothing to do, or all would wait for the last.
            budget = min(budget, (sum(lengths) + around * len(lengths)) // (2 * len(devices)))
        batch: list[int] = []
        for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
            if batch:
                width = lengths[batch[0]] + around
                if batch_size is None:
                    # A new length starts a new batch, which spares padding and mask, once this one is well filled.
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
        """Who embeds: this model, or copies of it on several devices."""
        if devices is not None:
            if device is not None:
                raise DiffaugError("either one device or several devices can be given, not both")
            if isinstance(devices, str) or not devices:
                raise DiffaugError(f'devices is a list such as ["cuda:0", "cuda:1"], not {devices!r}')
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
                    # A matrix product rounds equal documents differently, depending on where they stand.
                    near = np.partition(scores, -k)[-k] - 1e-6 * max(1.0, np.abs(scores).max())
                    candidates = np.flatnonzero(scores >= near)
                # Summed in double precision, equal documents are equal, and stand in the corpus's order.
                exact = np.einsum("ij,j->i", documents[candidates], query, dtype=np.float64).astype(np.float32)
                best = np.argsort(-exact, kind="stable")[:k]
                found.append([Hit(int(candidates[i]), float(exact[i])) for i in best])
        return found


def _first_occurrences(texts: list[str]) -> NDArray[np.int64]:
    """For each text, the index of the first text equal to it."""
    seen: dict[str, int] = {}
    first = np.empty(len(texts), dtype=np.int64)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise DiffaugError(f"sentence {i} is of type {type(text).__name__}, not a string: {text!r:.80}")
        first[i] = seen.setdefault(text, i)
    return first


def _check_backend(source: str, backend: Backend | None, onnx: bool) -> None:
    if backend not in (None, *get_args(Backend)):
        raise DiffaugError(f"there is no backend {backend!r}; choose one of {', '.join(get_args(Backend))}")
    if backend == "torch" and onnx:
        raise DiffaugError(
            f"{source} is an export to ONNX, which PyTorch cannot run; load the model it was made from, or leave "
            "backend out"
        )
    if backend == "onnx" and not onnx:
        raise DiffaugError(f"{source} is no export to ONNX; make one: diffaug export --to onnx {source} FOLDER")


def _unit(vectors: Vectors) -> Vectors:
    """Scaled to length one; the zero vector stays what it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)
