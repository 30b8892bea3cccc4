"""`diffaug label`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from diffaug.cli.columns import Columns, parse_columns
from diffaug.cli.embed import Device, Model, Trust, load_embedder
from diffaug.cli.plugins import Plugins
from diffaug.cli.serve import AllowHost, Host, Port, Token, require_packages, run_server
from diffaug.errors import DiffaugError
from diffaug.files import check_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diffaug.serve.label.kinds import Kind


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(label)


def label(
    sentences: Annotated[str, typer.Argument(help="Text, one sentence per line, or .csv, .tsv, .jsonl or .parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The CSV file of labels.", show_default=False)],
    kind: Annotated[
        Literal["same-different", "triplets", "scores", "classes"] | None,
        typer.Option(help="What is asked; default: same-different, or that of the answers so far.", show_default=False),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="A class, for --kind classes; repeat for several.", show_default=False),
    ] = None,
    questions: Annotated[int, typer.Option(min=0, help="Number of questions.")] = 500,
    overlap: Annotated[float, typer.Option(min=0, max=1, help="Fraction of questions that two people answer.")] = 0.2,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Never ask about sentences of this file, such as dev or test.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    import_from: Annotated[
        list[Path] | None,
        typer.Option("--import", help="Add answers of Label Studio or Argilla (JSON).", show_default=False),
    ] = None,
    export_to: Annotated[
        Path | None, typer.Option("--export", help="Write questions and answers as JSON, and exit.", show_default=False)
    ] = None,
    export_format: Annotated[
        Literal["label-studio", "argilla"], typer.Option("--format", help="The format of --export.")
    ] = "label-studio",
    suggest_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Show suggestions of a language model with an OpenAI-compatible API, such as http://localhost:11434/v1.",
            show_default=False,
        ),
    ] = None,
    suggest_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model at --suggest-url.", show_default=False)
    ] = None,
    suggest_key: Annotated[
        str | None,
        typer.Option(envvar="DIFFAUG_SUGGEST_KEY", help="The API key of --suggest-url.", show_default=False),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    allow_host: AllowHost = None,
    column: Columns = None,
    model: Model = None,
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Serve a labelling page that asks one question at a time, and write the labels to a CSV file.

    Answers are stored beside it, in a file that ends in .db. The same command continues.
    """
    require_packages()
    from diffaug.data.documents import read_documents
    from diffaug.files import exclusive_lock
    from diffaug.serve.label.app import Background, create_label_app
    from diffaug.serve.label.formats import export, read_answers, write_csv
    from diffaug.serve.label.jobs import AdaptJobs
    from diffaug.serve.label.refit import Refit
    from diffaug.serve.label.sampling import add_sampled, read_excluded
    from diffaug.serve.label.store import Store, same_text
    from diffaug.serve.label.suggestions import ChatModel, Suggester
    from diffaug.serve.web import Limits, listen

    database = out.with_suffix(".db")
    for target in (out, database, export_to):
        if target is not None:
            check_output(target, [sentences, model, *(exclude or ()), *(import_from or ())])
    asked = _kind(out, database, kind, classes or ())
    if (suggest_url is None) != (suggest_model is None):
        raise DiffaugError("--suggest-url and --suggest-model must be given together")
    chat = None if suggest_url is None else ChatModel(suggest_url, str(suggest_model), suggest_key)
    limits = Limits(bytes=1 << 20, token=token, hosts=tuple(allow_host or ()))
    sock = None if export_to is not None else listen(host, port)
    documents = read_documents(sentences, parse_columns(column))
    excluded = read_excluded(exclude or ())
    answers = [entry for path in import_from or () for entry in read_answers(path, asked)]
    out.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(out.with_suffix(".lock"), f"{database} is in use by another diffaug label"):
        store = Store(database, asked)
        if answers:
            typer.echo(f"{store.add_answered(answers):,} answers imported", err=True)
        store.exclude(excluded)
        if (missing := questions - len(store.known())) > 0:
            embedder = load_embedder(model, device, trust_remote_code)
            add_sampled(store, documents.sentences, embedder, missing, overlap=overlap, excluded=excluded, seed=seed)
        if export_to is not None:
            typer.echo(f"{export(export_to, store, export_format):,} questions -> {export_to}", err=True)
        if sock is not None:
            text = [one for one in documents.sentences if same_text(one) not in excluded]
            background = Background(
                Refit(store, lambda: load_embedder(model, device, trust_remote_code)),
                AdaptJobs(
                    out.with_name(f"{out.stem}-adapt"), model or "embedded", text if asked.name == "classes" else ()
                ),
                None if chat is None else Suggester(store, chat),
            )
            app = create_label_app(store, out, Path(sentences).name, limits, background)
            run_server(app, sock, limits, f"{len(store.known()):,} questions, answers -> {out}")
        typer.echo(f"{write_csv(out, store):,} labels -> {out}", err=True)
        store.close()


def _kind(out: Path, database: Path, name: str | None, classes: Sequence[str]) -> Kind:
    """The kind of questions: that of the answers so far, unless the options name one."""
    from diffaug.serve.label.kinds import make_kind
    from diffaug.serve.label.store import stored_kind

    if out.suffix.lower() != ".csv":
        raise DiffaugError(f"--out must end in .csv, got {out}")
    stored = stored_kind(database)
    if out.exists() and stored is None:
        raise DiffaugError(f"{out} exists, but not {database} with its answers; choose another --out")
    if stored is not None and name in (None, stored.name) and not classes:
        return stored
    return make_kind(name or (stored.name if stored is not None else "same-different"), classes)
