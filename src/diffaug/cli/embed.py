"""`diffaug encode`, `similarity`, `search` and `predict`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffaug.cli.columns import Columns, parse_columns
from diffaug.cli.plugins import Plugins
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file

if TYPE_CHECKING:
    from diffaug.embedder import Embedder, Vectors

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A diffaug, sentence-transformers or transformers folder, or a hub name; default: the embedded encoder.",
        show_default=False,
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps ...; default: the GPU if there is one.")]
Sentences = Annotated[
    Path,
    typer.Argument(
        help="A text file with one sentence per line, or a .csv, .tsv, .jsonl or .parquet file; - is standard input."
    ),
]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")]

# Files that are read by column, not line by line.
_TABLES = {".csv", ".tsv", ".jsonl", ".parquet"}


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(encode)
    app.command()(similarity)
    app.command()(search)
    app.command()(predict)


def encode(
    sentences: Sentences = Path("-"),
    model: Model = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A .npy, .parquet or .jsonl file; - prints JSON lines.")
    ] = Path("-"),
    batch_size: Annotated[int | None, typer.Option(help="Sentences per batch; default: by number of tokens.")] = None,
    normalize: Annotated[bool, typer.Option(help="Scale vectors to length 1.")] = True,
    column: Columns = None,
    device: Device = None,
    devices: Annotated[
        str | None, typer.Option(help="Use several devices in parallel: cuda:0,cuda:1.", show_default=False)
    ] = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Encode each line of a text file, including empty lines, or each row of a table."""
    if str(out) != "-" and out.suffix not in {".npy", ".parquet", ".jsonl"}:
        raise DiffaugError(f"--out must end in .npy, .parquet or .jsonl, got {out}")
    if out.suffix == ".parquet":
        _pyarrow()
    several = None if devices is None else [name.strip() for name in devices.split(",") if name.strip()]
    if several is not None and (device is not None or not several):
        raise DiffaugError("--devices must list one or more devices, separated by commas, and excludes --device")
    lines = _read(sentences, column)
    embedder = _load(model, several[0] if several else device, trust_remote_code)
    vectors = embedder.encode(lines, batch_size, normalize=normalize, devices=several)
    _write(out, lines, vectors)
    if str(out) != "-":
        typer.echo(f"{len(vectors):,} vectors of width {vectors.shape[1]} -> {out}", err=True)


def similarity(
    first: Annotated[str, typer.Argument(help="A sentence.")],
    second: Annotated[str, typer.Argument(help="Another sentence.")],
    model: Model = None,
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Print the cosine similarity of two sentences."""
    typer.echo(f"{_load(model, device, trust_remote_code).similarity(first, second):.4f}")


def search(
    corpus: Sentences,
    queries: Annotated[list[str], typer.Argument(help="One query or several.")],
    k: Annotated[int, typer.Option("-k", help="Number of results per query.")] = 5,
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
    column: Columns = None,
    model: Model = None,
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Find the sentences in a file that are most similar to each query."""
    lines = [line for line in _read(corpus, column) if line.strip()]
    if not lines:
        raise DiffaugError(f"{corpus} contains no sentences")
    for query, hits in zip(queries, _load(model, device, trust_remote_code).search(lines, queries, k), strict=True):
        if json_lines:
            for hit in hits:
                record = {"query": query, "score": round(hit.score, 6), "sentence": lines[hit.index]}
                typer.echo(json.dumps(record, ensure_ascii=False))
        else:
            if len(queries) > 1:
                typer.secho(query, bold=True)
            for hit in hits:
                typer.echo(f"{hit.score:7.4f}  {lines[hit.index]}")


def predict(
    sentences: Sentences = Path("-"),
    model: Model = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Sentences with a class to learn from; default: the classifier saved with the model.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[str, typer.Option(help="With --labels: logistic or prototypes.")] = "logistic",
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --labels: save model and classifier here.", show_default=False),
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
    column: Columns = None,
    device: Device = None,
    trust_remote_code: Trust = False,
) -> None:
    """Print the class of each sentence of a file, with its probability."""
    if kind not in ("logistic", "prototypes"):
        raise DiffaugError(f"--kind must be logistic or prototypes, got {kind!r}")
    if save is not None and labels is None:
        raise DiffaugError("--save needs --labels")
    lines = [line for line in _read(sentences, column) if line.strip()]
    embedder = _load(model, device, trust_remote_code)
    if labels is not None:
        from diffaug.data.read import read_classes

        examples = read_classes(labels)
        embedder.fit_classifier(examples.sentences, examples.classes, kind)  # type: ignore[arg-type] # checked above
        if save is not None:
            embedder.save(save)
    shares = embedder.predict_probabilities(lines)
    assert embedder.classifier is not None
    for line, row in zip(lines, shares, strict=True):
        name, share = embedder.classifier.names[row.argmax()], float(row.max())
        if json_lines:
            record = {"class": name, "probability": round(share, 6), "sentence": line}
            typer.echo(json.dumps(record, ensure_ascii=False))
        else:
            typer.echo(f"{name}\t{share:.3f}\t{line}")


def _load(model: str | None, device: str | None, trust_remote_code: bool) -> Embedder:
    from diffaug.embedder import Embedder

    return Embedder.from_pretrained(model, device=device, trust_remote_code=trust_remote_code)


def _read(path: Path, column: list[str] | None) -> list[str]:
    """The sentences of a file: its lines, empty ones included, or the sentence column of a table."""
    from diffaug.data.lines import COMPRESSIONS, read_lines
    from diffaug.data.read import read_sentences

    columns = parse_columns(column)
    inner = Path(path.stem) if path.suffix.lower() in COMPRESSIONS else path
    if inner.suffix.lower() in _TABLES:
        return read_sentences(path, columns)
    if columns is not None:
        raise DiffaugError(f"--column is for .csv, .tsv, .jsonl and .parquet files; {path} is read line by line")
    stream = sys.stdin.buffer if str(path) == "-" else None
    return [line for _, line in read_lines(path, stream=stream)]


def _write(out: Path, lines: list[str], vectors: Vectors) -> None:
    if str(out) == "-":
        # JSON is UTF-8, independent of the terminal's encoding.
        sys.stdout.buffer.writelines(_json_line(*pair).encode() for pair in zip(lines, vectors, strict=True))
        sys.stdout.buffer.flush()
        return
    with atomic_file(out) as temporary:
        if out.suffix == ".npy":
            import numpy as np

            np.save(temporary, vectors)
        elif out.suffix == ".parquet":
            pyarrow, parquet = _pyarrow()
            flat = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1])
            parquet.write_table(pyarrow.table({"sentence": lines, "embedding": flat}), temporary)
        else:
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(_json_line(line, vector) for line, vector in zip(lines, vectors, strict=True))


def _json_line(sentence: str, vector: Vectors) -> str:
    # Nine significant digits are enough to restore a float32 exactly.
    numbers = [float(f"{x:.9g}") for x in vector.tolist()]
    return json.dumps({"sentence": sentence, "embedding": numbers}, ensure_ascii=False) + "\n"


def _pyarrow():  # type: ignore[no-untyped-def]
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DiffaugError("writing .parquet needs pyarrow: pip install 'diffaug[parquet]'") from error
    return pyarrow, pyarrow.parquet
