"""`diffaug serve`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from diffaug.cli.columns import Columns, parse_columns
from diffaug.cli.embed import Device, Keep, Trust, load_embedder
from diffaug.cli.plugins import Plugins
from diffaug.errors import DiffaugError

if TYPE_CHECKING:
    import socket

    from diffaug.serve.web import Limits

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines connect.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")]
Token = Annotated[
    str | None,
    typer.Option(envvar="DIFFAUG_TOKEN", help="Answer only requests with this bearer token.", show_default=False),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="A host name of a reverse proxy on this machine; repeat for several.", show_default=False),
]
MaxBytes = Annotated[int, typer.Option(min=1, help="Largest request, in bytes.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Seconds within which a request must arrive.")]


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(serve)


def serve(
    model: Annotated[
        str,
        typer.Argument(help="A diffaug, sentence-transformers or transformers folder, an ONNX export, or a hub name."),
    ] = "embedded",
    index: Annotated[
        str | None,
        typer.Option(
            help="What to search: an index of `diffaug index build`, vectors that `encode` wrote, or text files.",
            show_default=False,
        ),
    ] = None,
    versus: Annotated[
        str | None,
        typer.Option(help="A second model for the search page, with files of sentences.", show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The model's name for clients; default: that of its folder.", show_default=False)
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    allow_host: AllowHost = None,
    queue_limit: Annotated[
        int, typer.Option(help="Sentences that may wait; requests beyond are answered with 429.")
    ] = 8_192,
    max_bytes: MaxBytes = 8 << 20,
    timeout: Seconds = 20.0,
    column: Columns = None,
    keep: Keep = None,
    device: Device = None,
    plugins: Plugins = None,
    trust_remote_code: Trust = False,
) -> None:
    """Serve a model over HTTP: OpenAI's embeddings API, similarity, and search with a page."""
    require_packages()
    # torch keeps code for each shape of a matrix product on the CPU, by default for 1,024 of them. A server meets new
    # shapes in every batch, so that its memory would grow by hundreds of MB. A batch needs a few dozen.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    from diffaug.serve.api import Served, create_app, served_name
    from diffaug.serve.corpus import MemoryCorpus, open_corpus
    from diffaug.serve.web import Limits, listen

    if versus is not None and index is None:
        raise DiffaugError("--versus compares two models in search; give --index too")
    sock = listen(host, port)
    columns = parse_columns(column)
    embedder = load_embedder(model, device, trust_remote_code)
    corpus = None if index is None else open_corpus(index, embedder, columns, keep)
    models = [Served(name or served_name(model), embedder, corpus)]
    if versus is not None:
        other = load_embedder(versus, device, trust_remote_code)
        if not isinstance(corpus, MemoryCorpus):
            raise DiffaugError(
                "--versus needs sentences in files, which both models encode, not an index; change --index"
            )
        second = MemoryCorpus(corpus.name, corpus.documents, other.encode(corpus.documents.sentences))
        models.append(Served(served_name(versus), other, second))
    limits = Limits(max_bytes, timeout, token, tuple(allow_host or ()))
    app = create_app(models, limits, queue_limit)
    rows = "" if corpus is None else f", {corpus.rows:,} documents"
    run_server(app, sock, limits, f"{models[0].name} (width {embedder.width}, on {embedder.device}{rows})")


def require_packages() -> None:
    """Check that the extra ``serve`` is installed.

    Raises:
        DiffaugError: it is not.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise DiffaugError("the server needs Starlette and uvicorn: pip install 'diffaug[serve]'") from error


def run_server(app: object, sock: socket.socket, limits: Limits, what: str) -> None:
    """Say where the server is, and serve until it is ended."""
    from diffaug.serve.web import address, is_public, run

    if is_public(sock) and limits.token is None:
        typer.echo("warning: other machines can use this server; set a token with --token or DIFFAUG_TOKEN", err=True)
    typer.echo(f"{what}: {address(sock, limits.token)}   (Ctrl-C ends it)", err=True)
    run(app, sock, limits)  # type: ignore[arg-type]
