"""`diffaug encode`, `similarity`, `search` and `predict`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from diffaug.cli.columns import Columns, parse_columns
from diffaug.cli.engine import Engine
from diffaug.cli.plugins import Plugins
from diffaug.errors import DiffaugError

if TYPE_CHECKING:
    from diffaug.embedder import Embedder
    from diffaug.inference.search import Hit

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A diffaug, sentence-transformers or transformers folder, or a hub name; default: embedded, the small "
        "encoder included in the package.",
        show_default=False,
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps ...; default: the GPU if there is one.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="Carry along only this column (repeat it for several); default: all.", show_default=False),
]
OnBad = Annotated[Literal["error", "skip"], typer.Option(help="What to do with rows that cannot be used.")]
TruncateDim = Annotated[
    int | None,
    typer.Option(
        help="Truncate vectors to this many components, for a model trained with stage2.matryoshka.", show_default=False
    ),
]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")]


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(encode)
    app.command()(similarity)
    app.command()(search)
    app.command()(predict)


def encode(
    sentences: Annotated[
        list[str] | None,
        typer.Argument(
            help="Text files with one sentence per line, .csv, .tsv, .jsonl or .parquet files, folders or globs of "
            "them; - is standard input.",
            show_default="-",
        ),
    ] = None,
    model: Model = None,
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", help="A folder for Parquet shards, or a .npy, .parquet or .jsonl file; - prints JSON lines."
        ),
    ] = "-",
    precision: Annotated[
        Literal["float32", "float16", "int8", "binary"], typer.Option(help="Format of the stored numbers.")
    ] = "float32",
    batch_size: Annotated[int | None, typer.Option(help="Sentences per batch; default: by number of tokens.")] = None,
    normalize: Annotated[bool, typer.Option(help="Scale vectors to length 1.")] = True,
    truncate_dim: TruncateDim = None,
    column: Columns = None,
    keep: Keep = None,
    on_bad: OnBad = "error",
    shard_size: Annotated[
        int | None, typer.Option(help="Rows per shard; at most one is lost when interrupted.", show_default="32768")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Start again instead of continuing an interrupted encode.")] = False,
    device: Device = None,
    devices: Annotated[
        str | None, typer.Option(help="Use several devices in parallel: cuda:0,cuda:1.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Encode in this many processes, on all GPUs or on --devices in turn.", show_default=False),
    ] = None,
    engine: Engine = "local",
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Encode each line of text files, including empty lines, or each row of tables.

    Ctrl-C, a crash or a full disk lose at most the current shard. The same command then continues.
    """
    stream = out == "-"
    path = Path(out)
    if not stream and path.suffix not in {"", ".npy", ".parquet", ".jsonl"} and not path.is_dir():
        raise DiffaugError(f"--out must end in .npy, .parquet or .jsonl, or be a folder without a suffix, got {out}")
    if not stream and path.suffix in {"", ".parquet"}:
        from diffaug.inference.parquet import pyarrow_modules

        pyarrow_modules()
    several = None if devices is None else [name.strip() for name in devices.split(",") if name.strip()]
    if several is not None and (device is not None or not several):
        raise DiffaugError("--devices must list one or more devices, separated by commas, and excludes --device")
    if engine == "ray" and (device is not None or several is not None):
        raise DiffaugError("--device and --devices do not apply to --engine ray: each worker has a GPU or a core")
    columns = parse_columns(column)
    from diffaug.data.documents import DocumentReader

    DocumentReader(sentences or ["-"], columns, keep, on_bad)  # its errors come before the model is loaded
    embedder = load_embedder(model, several[0] if several else device, trust_remote_code, truncate_dim)
    try:
        result = embedder.encode_files(
            sentences or ["-"],
            sys.stdout.buffer if stream else path,
            columns=columns,
            keep=keep,
            on_bad=on_bad,
            precision=precision,
            normalize=normalize,
            batch_size=batch_size,
            shard_size=shard_size,
            devices=several,
            workers=workers,
            engine=engine,
            overwrite=overwrite,
            show_progress=False if stream else None,
        )
    except KeyboardInterrupt as error:  # typer would end the program without a word
        typer.echo(f"interrupted: {error}" if str(error) else "interrupted", err=True)
        raise typer.Exit(130) from None
    if not stream:
        earlier = f" ({result.continued:,} of them earlier)" if result.continued else ""
        typer.echo(f"{result.rows:,} vectors of width {result.width} -> {out}{earlier}", err=True)


def similarity(
    first: Annotated[str, typer.Argument(help="A sentence.")],
    second: Annotated[str, typer.Argument(help="Another sentence.")],
    model: Model = None,
    truncate_dim: TruncateDim = None,
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Print the cosine similarity of two sentences."""
    typer.echo(f"{load_embedder(model, device, trust_remote_code, truncate_dim).similarity(first, second):.4f}")


def search(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[CORPUS] QUERY...",
            help="Where to search, unless --index is given: files as for `encode`, or vectors that it wrote to "
            "Parquet; then one query or several.",
            show_default=False,
        ),
    ],
    index: Annotated[
        Path | None, typer.Option(help="Search in an index of `diffaug index build`.", show_default=False)
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Number of results per query.")] = 5,
    unique: Annotated[bool, typer.Option("--unique", help="Show each distinct sentence once.")] = False,
    where: Annotated[
        str | None,
        typer.Option("--filter", help='With --index: only rows that match, such as "year > 2020".', show_default=False),
    ] = None,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="With --index: combine vectors with full-text search.")
    ] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
    column: Columns = None,
    keep: Keep = None,
    on_bad: OnBad = "error",
    model: Model = None,
    truncate_dim: TruncateDim = None,
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Find the sentences that are most similar to each query.

    Vectors that were computed before are used with the model that computed them, unless --model is given.
    """
    from diffaug.data.documents import finite, read_documents
    from diffaug.inference.index import Index
    from diffaug.inference.search import VectorStore, search_blocks, search_unique
    from diffaug.inference.stored import StoredVectors

    if index is None and (where is not None or hybrid):
        raise DiffaugError("--filter and --hybrid need --index")
    queries = words if index is not None else words[1:]
    if not queries:
        raise DiffaugError("give what to search in and at least one query: diffaug search CORPUS QUERY")
    store: VectorStore | None = StoredVectors.open(words[0]) if index is None else Index.open(index)
    if store is not None and (column or keep):
        raise DiffaugError("--column and --keep do not apply to vectors that were computed before; leave them out")
    documents = None if store is not None else read_documents(words[0], parse_columns(column), keep, on_bad)
    if store is not None and truncate_dim not in (None, store.vectors.width):
        raise DiffaugError(
            f"{store.name} holds vectors of width {store.vectors.width}; leave out --truncate-dim, or encode again"
        )
    name = model if store is None or model else store.vectors.model
    embedder = load_embedder(name, device, trust_remote_code, truncate_dim)
    if store is not None:
        store.vectors.require_model(embedder.fingerprint(), embedder.name, store.name)
    vectors = embedder.encode(queries, truncate_dim=None if store is None else store.vectors.width)
    corpus = [] if documents is None else [(documents, embedder.encode(documents.sentences))]

    def find(count: int) -> list[list[Hit]]:
        if isinstance(store, Index):
            return store.search(vectors, count, where=where, texts=queries if hybrid else None)
        return search_blocks(corpus, vectors, count) if store is None else store.search(vectors, count)

    size = len(documents) if documents is not None else store.rows if store is not None else 0
    found = search_unique(find, k, size) if unique else find(k)
    for query, hits in zip(queries, found, strict=True):
        if json_lines:
            for hit in hits:
                record = {"query": query, "score": round(hit.score, 6), "sentence": hit.sentence}
                record |= {"columns": dict(hit.columns)} if hit.columns else {}
                typer.echo(json.dumps(finite(record), ensure_ascii=False, default=str))
            continue
        if len(queries) > 1:
            typer.secho(query, bold=True)
        for hit in hits:
            others = "".join(f"{name}={str(value)[:40]}  " for name, value in hit.columns.items() if value is not None)
            typer.echo(f"{hit.score:7.4f}  {others}{hit.sentence}")


def predict(
    sentences: Annotated[
        str, typer.Argument(help="A text file with one sentence per line, or a table; - is standard input.")
    ] = "-",
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
    label_column: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=NAME", help="As --column, for --labels: sentence=body or class=queue."),
    ] = None,
    on_bad: OnBad = "error",
    device: Device = None,
    trust_remote_code: Trust = False,
) -> None:
    """Print the class of each sentence of a file, with its probability."""
    if kind not in ("logistic", "prototypes"):
        raise DiffaugError(f"--kind must be logistic or prototypes, got {kind!r}")
    for option, value in (("--save", save), ("--label-column", label_column)):
        if value is not None and labels is None:
            raise DiffaugError(f"{option} needs --labels")
    from diffaug.data.documents import read_documents

    lines = read_documents(sentences, parse_columns(column), on_bad=on_bad).sentences
    embedder = load_embedder(model, device, trust_remote_code)
    if labels is not None:
        from diffaug.data.problems import SKIP_OPTION
        from diffaug.data.read import read_classes

        examples = read_classes(labels, parse_columns(label_column, "--label-column"), on_bad, SKIP_OPTION)
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
            typer.echo(f"{name}\t{share:.3f}\t{' '.join(line.split())}")  # a line break would look like another row


def load_embedder(
    model: str | None, device: str | None, trust_remote_code: bool, truncate_dim: int | None = None
) -> Embedder:
    """Load the model of the option --model."""
    from diffaug.embedder import Embedder

    return Embedder.from_pretrained(
        model, device=device, truncate_dim=truncate_dim, trust_remote_code=trust_remote_code
    )
