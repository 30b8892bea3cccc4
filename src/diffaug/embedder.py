"""`Embedder`: load a model, encode sentences, compare and search them, save the model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, get_args, overload

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from diffaug.cluster import Engine
from diffaug.data.problems import OnBad
from diffaug.errors import DiffaugError
from diffaug.inference.encode import encode_texts, length_batches
from diffaug.inference.encode_files import EncodedFiles, Model, encode_files
from diffaug.inference.onnx_runner import is_onnx_export, load_onnx
from diffaug.inference.quantize import Precision
from diffaug.inference.runner import Runner, TorchRunner, Vectors
from diffaug.inference.search import Hit, VectorStore, exact_search
from diffaug.models.classifier import Classifier, ClassifierKind
from diffaug.models.config import ModelConfig, Pooling, Provenance
from diffaug.models.encoder import Encoder
from diffaug.models.io.fetch import find_folder
from diffaug.models.io.foreign import is_sentence_transformers, load_sentence_transformers, load_transformers
from diffaug.models.io.saved import is_saved_model, load_model, save_model
from diffaug.models.io.start import refuse_run_folder
from diffaug.progress import progress_bar

Backend = Literal["torch", "onnx"]


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
        self.name: str | None = None
        """The path or hub name that the model was loaded from."""
        self.truncate_dim: int | None = None
        """The length to which vectors are truncated."""
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
        truncate_dim: int | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
    ) -> Embedder:
        """Load a model. A local folder and the default model need no download.

        Args:
            name_or_path: a folder saved by diffaug, sentence-transformers or transformers, an ONNX export, or a name
                on the hub; default: ``embedded``, the small encoder included in the package.
            pooling: pooling of a plain transformers model, which does not define it (default ``mean``, or ``mask``
                with a template).
            template: template of a plain transformers model, with ``{}`` and ``[MASK]``.
            backend: ``torch``, or ``onnx`` for ONNX Runtime; default: the one the model was saved for. A model that
                was saved for the other backend is an error.
            device: device to run on; default: the GPU if there is one, and the CPU with ONNX Runtime.
            truncate_dim: truncate all vectors to this many components, for a model trained with Matryoshka dimensions.
            trust_remote_code: run Python code that comes with the model. Off by default.
            revision: branch, tag or commit of a model on the hub.

        Raises:
            DiffaugError: the model cannot be loaded completely; the message gives the reason.
        """
        source = "embedded" if name_or_path is None else str(name_or_path)
        folder = find_folder(source, revision)
        refuse_run_folder(source, folder)
        onnx = is_onnx_export(folder)
        _check_backend(source, backend, onnx)
        if onnx or is_saved_model(folder) or is_sentence_transformers(folder):
            if pooling is not None or template is not None:
                raise DiffaugError(f"{source} has its own pooling and template; leave out pooling and template")
            if onnx:
                embedder = cls(*load_onnx(folder), device=device)
            elif is_saved_model(folder):
                embedder = cls(*load_model(folder, plain=True), device=device)
                embedder.classifier = Classifier.load(folder, embedder.runner.width)
            else:
                loaded = load_sentence_transformers(folder, trust_remote_code=trust_remote_code, plain=True)
                embedder = cls(*loaded, device=device)
        else:
            config = ModelConfig(
                pooling=pooling or ("mean" if template is None else "mask"),
                template=template,
                final_stop=template is not None,
            )
            options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "revision": revision}
            embedder = cls(*load_transformers(str(folder), config, plain=True, **options), device=device)
        embedder.name = source
        embedder.truncate_dim = embedder._checked(truncate_dim)
        return embedder

    def __repr__(self) -> str:
        limit = self.collator.max_length
        cut = "" if limit is None else f", truncates at {limit} tokens"
        return f"Embedder(width {self.width}{cut}, on {self.device})"

    @property
    def width(self) -> int:
        """The length of a vector."""
        return self.truncate_dim or self.runner.width

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
        truncate_dim: int | None = None,
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
            truncate_dim: return the first so many components of the vectors, normalised after truncation; default:
                that of the Embedder, or all.
            show_progress: show a progress bar on standard error; default: only on a terminal and for long work.
            device: move the model to this device first.
            devices: use several devices in parallel, for example ``["cuda:0", "cuda:1"]``. Each gets a thread and a
                temporary copy of the model; the model itself is not moved. A device may be listed several times;
                copies on the CPU share its threads.

        Returns:
            float32, in input order: (number of sentences, width), or (width,) for a single string.

        Raises:
            DiffaugError: an input is not a string, the batch size is below 1, ``truncate_dim`` is greater than the
                model's width, or the model cannot run on a device.
        """
        if isinstance(sentences, str):
            options: dict[str, Any] = {"truncate_dim": truncate_dim, "device": device, "devices": devices}
            return self.encode([sentences], batch_size, normalize=normalize, show_progress=False, **options)[0]
        width = self._checked(truncate_dim) or self.width
        runners = self._runners(device, devices)
        texts = sentences if isinstance(sentences, list) else list(sentences)
        with progress_bar("embedding", len(texts), show_progress) as advance:
            vectors, truncated = encode_texts(
                texts, self.collator, runners, batch_size, normalize=normalize, width=width, advance=advance
            )
        if truncated and not self._warned_truncated:
            self._warned_truncated = True
            warnings.warn(
                f"{truncated:,} of {len(set(texts)):,} distinct sentences were truncated to {self.collator.max_length} "
                "tokens (this warning is shown once)",
                stacklevel=2,
            )
        return vectors

    def encode_files(
        self,
        sources: str | Path | Sequence[str | Path],
        out: str | Path | IO[bytes],
        *,
        columns: Mapping[str, str | int] | None = None,
        keep: Sequence[str] | None = None,
        on_bad: OnBad = "error",
        precision: Precision = "float32",
        normalize: bool = True,
        batch_size: int | None = None,
        shard_size: int | None = None,
        devices: Sequence[str | torch.device] | None = None,
        workers: int | None = None,
        engine: Engine = "local",
        overwrite: bool = False,
        show_progress: bool | None = None,
    ) -> EncodedFiles:
        """Encode files of any size with constant memory, shard by shard.

        If an earlier call with the same arguments was interrupted, this one continues after its last finished shard.
        The shards are the same, byte by byte, as without the interruption.

        Args:
            sources: text with one sentence per line, or .csv, .tsv, .jsonl or .parquet files, also compressed (.gz,
                .xz); folders and globs of them; ``-`` is standard input.
            out: a folder for Parquet shards with a manifest; a .npy, .jsonl or .parquet file; or a binary stream for
                JSON lines. A .parquet file cannot be continued, only a folder, .npy and .jsonl.
            columns: ``{"sentence": NAME}``, where the column is not called ``sentence`` or ``text``.
            keep: the other columns to carry along; default: all.
            on_bad: ``"error"``, ``"skip"``, or a function that is called for each bad row.
            precision: ``float32``, ``float16``, ``int8`` or ``binary``. The last two keep directions, not lengths.
            normalize: scale the vectors to length 1.
            batch_size: as for `encode`.
            shard_size: rows per shard; default 32,768.
            devices: several devices, as for `encode`; with ``workers``, the devices of the processes.
            workers: encode in this many processes, each with its own model, by default on all GPUs in turn.
            engine: ``"ray"`` encodes on the nodes of a Ray cluster, in ``workers`` processes or in one per GPU or core.
            overwrite: start again instead of continuing.
            show_progress: show a bar or, in a log, one line per minute on standard error; default: for long work.

        Raises:
            DiffaugError: an input cannot be read, or the output is in use, belongs to another model or cannot be
                written.
        """
        return encode_files(
            Model(self.runner, self.collator, self.name, self.width),
            sources,
            out,
            columns=columns,
            keep=keep,
            on_bad=on_bad,
            precision=precision,
            normalize=normalize,
            batch_size=batch_size,
            shard_size=shard_size,
            devices=devices,
            workers=workers,
            engine=engine,
            overwrite=overwrite,
            show_progress=show_progress,
        )

    def similarity(self, a: str | Iterable[str], b: str | Iterable[str]) -> Any:
        """Cosine similarities of sentences.

        Returns:
            a float for two strings, an array for a string and a list, a (len(a), len(b)) matrix for two lists.
        """
        cosines = self.encode(a) @ self.encode(b).T
        return float(cosines) if np.ndim(cosines) == 0 else cosines

    @overload
    def search(self, corpus: Iterable[str] | Vectors | VectorStore, queries: str, k: int = ...) -> list[Hit]: ...  # type: ignore[overload-overlap]
    @overload
    def search(
        self, corpus: Iterable[str] | Vectors | VectorStore, queries: Iterable[str], k: int = ...
    ) -> list[list[Hit]]: ...

    def search(
        self, corpus: Iterable[str] | Vectors | VectorStore, queries: str | Iterable[str], k: int = 10
    ) -> list[Hit] | list[list[Hit]]:
        """The ``k`` entries of a corpus most similar to each query, best first; ties are in corpus order.

        Args:
            corpus: sentences, their vectors from an earlier `encode`, which are not normalised again, an `Index`, or
                `StoredVectors` from an earlier `encode_files`. Queries are truncated to the width of the last two.
            queries: one query or several.
            k: number of results; fewer are returned if the corpus is smaller.

        Raises:
            DiffaugError: ``k`` or the shape of the vectors is wrong, the vectors are those of another model, or one is
                not finite.
        """
        if isinstance(corpus, VectorStore):
            corpus.vectors.require_model(self.fingerprint(), self.name, corpus.name)
            vectors = self.encode([queries] if isinstance(queries, str) else queries, truncate_dim=corpus.vectors.width)
            found = corpus.search(vectors, k)
            return found[0] if isinstance(queries, str) else found
        if isinstance(corpus, str):
            raise DiffaugError("corpus must be a list of sentences, got a single string")
        documents = corpus if isinstance(corpus, np.ndarray) else self.encode(corpus)
        if documents.ndim != 2 or documents.shape[1] != self.width:
            raise DiffaugError(f"corpus vectors must have the shape (n, {self.width}), got {documents.shape}")
        if isinstance(queries, str):
            return exact_search(documents, self.encode([queries]), k)[0]
        return exact_search(documents, self.encode(queries), k)

    def fit_classifier(
        self,
        sentences: Iterable[str],
        classes: Sequence[str],
        kind: ClassifierKind = "logistic",
        c: float | None = None,
    ) -> None:
        """Learn classes of sentences on the model's vectors, which stay as they are; `save` saves the classifier too.

        Args:
            sentences: examples.
            classes: the class of each.
            kind: ``logistic`` regression, or ``prototypes``: the class whose mean vector is nearest.
            c: inverse strength of the L2 penalty; None: chosen by cross-validation.
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
            raise DiffaugError(
                "this model has no classifier; train on sentences with a class, call fit_classifier, or name "
                "labels with diffaug predict --labels"
            )
        return self.classifier.probabilities(self.encode(sentences, truncate_dim=self.classifier.weight.shape[1]))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Save the model and everything inference needs in one folder, atomically; its vectors keep their full width.

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
        return length_batches(lengths, len(self.collator.template), devices or [self.device], batch_size)

    def _checked(self, truncate_dim: int | None) -> int | None:
        if truncate_dim is not None and not 1 <= truncate_dim <= self.runner.width:
            raise DiffaugError(
                f"truncate_dim must be between 1 and {self.runner.width}, the width of the model's vectors, got "
                f"{truncate_dim}"
            )
        return truncate_dim

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


def _check_backend(source: str, backend: Backend | None, onnx: bool) -> None:
    if backend not in (None, *get_args(Backend)):
        raise DiffaugError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    if backend == "torch" and onnx:
        raise DiffaugError(
            f"{source} is an ONNX export, which PyTorch cannot run; load the original model, or leave out backend"
        )
    if backend == "onnx" and not onnx:
        raise DiffaugError(f"{source} is not an ONNX export; create one: diffaug export --to onnx {source} FOLDER")
