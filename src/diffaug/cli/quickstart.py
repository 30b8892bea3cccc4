"""`diffaug quickstart`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffaug.cli.interruption import resumable

if TYPE_CHECKING:
    from diffaug.data import ScoredPairs
    from diffaug.embedder import Embedder
    from diffaug.evaluation import EvaluationResult
    from diffaug.tabular import Section

_TEST = "sample:test"
# The queries are chosen by this rule, not by what is found: the first pairs of the test file that mean the same.
_QUERIES, _SAME, _HITS = 3, 5.0, 3
# Pairs with at least this score count as relevant to each other: the same but for details of no importance.
_RELEVANT = 4.5


def register(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(quickstart)


def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the run and the report.")] = Path(
        "runs/quickstart"
    ),
) -> None:
    """Train the embedded encoder on the embedded data; show searches and scores before and after.

    It takes a minute or two on two CPU cores and downloads nothing. All that is shown is measured on sentences that
    the training did not see. An interrupted command is continued by the same command.
    """
    from diffaug.config import load_recipe
    from diffaug.training.preflight import check_start

    check_start(load_recipe("quickstart"), out, out.exists())  # before the slow imports below
    from rich.console import Console

    from diffaug.data import read_scored_pairs
    from diffaug.embedder import Embedder
    from diffaug.report import build
    from diffaug.tabular import rich_table
    from diffaug.training.run import train

    with resumable(out):
        model = train("quickstart", out, resume=out.exists()).model
    test = read_scored_pairs(_TEST)
    before, after = Embedder.from_pretrained(), Embedder.from_pretrained(model)
    console = Console()
    typer.echo(
        f"\nThe same {_QUERIES} searches before and after training, in {len(test.second)} unseen sentences.\n"
        f"The queries are the first {_QUERIES} of the test file that have a sentence with the same meaning (>):\n"
    )
    console.print(rich_table(searches(before, after, test), console.width))
    console.print(rich_table(scores(compare(before, after, test)), console.width))
    report = build(out, out / "report.html")
    typer.echo(f"model   {model}")
    next_command = f"{program()} data check YOUR-FILE.csv"
    typer.echo(f"next    {next_command}   (what is in your file, and the command that trains on it)")
    typer.echo(f"report  {report}   (open it in a browser)")


def program() -> str:
    """What to type for `diffaug`: a path if it was run by one, as by `make`, and the shell would not find the name."""
    if shutil.which("diffaug") is None and Path(sys.argv[0]).name == "diffaug":
        return sys.argv[0]
    return "diffaug"


def searches(before: Embedder, after: Embedder, test: ScoredPairs) -> Section:
    """The best hits of both models for each query; the sentence that means the same is marked, and its rank given."""
    from diffaug.tabular import Section

    chosen = [i for i, score in enumerate(test.scores) if score >= _SAME][:_QUERIES]
    queries = [test.first[i] for i in chosen]
    found = [model.search(test.second, queries, k=len(test.second)) for model in (before, after)]
    rows: list[list[str]] = []
    headings: dict[int, str] = {}
    for number, (match, query) in enumerate(zip(chosen, queries, strict=True)):
        headings[len(rows)] = query
        ranked = [[hit.index for hit in hits[number]] for hits in found]
        for place in range(_HITS):
            cells = [f"{'>' if order[place] == match else ' '} {test.second[order[place]]}" for order in ranked]
            rows.append([str(place + 1), *cells])
        rows.append(["", *(f"  rank of the same meaning: {order.index(match) + 1}" for order in ranked)])
    return Section("", ["", "before", "after"], rows, headings=headings, texts=3)


def compare(before: Embedder, after: Embedder, test: ScoredPairs) -> EvaluationResult:
    """Similarity on all pairs of the test file, and retrieval with all pairs that mean the same."""
    from diffaug.evaluation import evaluate

    relevant = {str(i): [str(i)] for i, score in enumerate(test.scores) if score >= _RELEVANT}
    retrieval = {
        "queries": {i: test.first[int(i)] for i in relevant},
        "corpus": {str(i): sentence for i, sentence in enumerate(test.second)},
        "relevant": relevant,
    }
    pairs = list(zip(test.first, test.second, test.scores, strict=True))
    return evaluate(after, pairs={"similarity": pairs}, retrieval={"search": retrieval}, versus=before)


def scores(result: EvaluationResult) -> Section:
    """Before, after and the difference with its interval."""
    from diffaug.tabular import Section

    names = {"similarity": "similarity: Spearman", "search": "search: mean reciprocal rank"}
    rows = [
        [
            names[row.name],
            f"{task.rows:,}",
            f"{row.second:.1f}",
            f"{row.first:.1f}",
            f"{row.difference:+.1f}",
            f"{row.low:+.1f} to {row.high:+.1f}",
        ]
        for row, task in zip(result.comparisons, result.tasks, strict=True)
    ]
    columns = ["test data", "rows", "before", "after", "difference", f"{100 * result.settings.confidence:g} % interval"]
    return Section("", columns, rows)
