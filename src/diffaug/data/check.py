"""`diffaug data check`: what a file holds, in plain words, and what it can be used for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffaug.data import readers
from diffaug.data.formats import Source
from diffaug.data.labels import Label
from diffaug.data.layout import Columns, Kind, Layout
from diffaug.data.problems import ProblemCount, Reporter, quoted
from diffaug.data.published import split_column
from diffaug.data.recognise import Recognised, recognise
from diffaug.data.records import LabelledPairs, PositivePairs, ScoredPairs, Triplets, triplets_from_pairs
from diffaug.data.tables import Table
from diffaug.errors import DiffaugError

# The length at which the methods cut sentences unless a recipe says otherwise.
_USUAL_PIECES = 32
# More sentences than this are not tokenised: the share would not change.
_TOKENISED = 20_000
_TOKENIZER = Path(__file__).parent.parent / "assets" / "mini" / "tokenizer.json"

Part = tuple[str, list[str]]
"""A heading and its lines."""


@dataclass
class Report:
    """What was found: ``parts`` to print, and whether the data can be used at all."""

    parts: list[Part]
    usable: bool

    def __str__(self) -> str:
        width = max(len(heading) for heading, _ in self.parts) + 2
        rows = []
        for heading, lines in self.parts:
            rows += [f"{heading if i == 0 else '':<{width}}{line}" for i, line in enumerate(lines)]
        return "\n".join(rows)


def check(source: Source, columns: Columns | None = None, kind: Kind | None = None) -> Report:
    """Read all of ``source`` and describe it.

    Args:
        source: what the readers take.
        columns: which column is what, if the names are not the usual ones.
        kind: what it should be; left out, it is recognised.
    """
    problems = ProblemCount()
    parts: list[Part] = []
    try:
        with readers.opened(source, problems) as (table, reporter):
            parts.append(("file", [f"{table.name}: {table.format}"]))
            if not table.whole_lines:
                parts.append(("columns", [_columns(table)]))
            found = recognise(table, columns, kind)
            if found.layout.header:
                parts[-1] = ("columns", [_columns(table, header=True)])
            parts.append(("kind", _kind(found)))
            splits = split_column(readers.column_names(table, found.layout)) is not None
            body = _body(table, found.layout, reporter, str(source))
    except DiffaugError as error:
        return Report([*parts, *_problems(problems), ("verdict", [f"unusable: {error}"])], usable=False)
    with_problems = f", {len(problems):,} with problems" if problems else ""
    left_out = f", {len(reporter.skipped):,} left out ({reporter.skipped})" if reporter.skipped else ""
    parts += [("rows", [f"{body.rows:,} usable{left_out}{with_problems}"]), *body.parts, *_problems(problems)]
    if len(problems) > body.rows:
        parts.append(("verdict", ["unusable: most rows have problems, so the format is probably not what it seems"]))
        return Report(parts, usable=False)
    if body.usable and problems:
        body.use.append("rows with problems stop the reading, unless they are skipped: --set data.on_bad=skip")
    if body.usable and splits and found.layout.kind is Kind.SCORED_PAIRS:
        body.use.append("data.dev reads the rows of the split dev, data.test those of the split test")
    if body.usable and columns:
        body.use.append("and say which column is what there too: --set data.columns.KEY.ROLE=NAME, KEY being nli or so")
    parts.append(("use" if body.usable else "verdict", body.use))
    return Report(parts, body.usable)


@dataclass
class _Body:
    """What is said about one kind of data, and what to do with it."""

    rows: int
    parts: list[Part]
    use: list[str]
    usable: bool = True


def _body(table: Table, layout: Layout, reporter: Reporter, source: str) -> _Body:
    if layout.kind is Kind.SENTENCES:
        return _sentences(readers.sentences(table, layout, reporter), source)
    if layout.kind is Kind.TRIPLETS:
        return _triplets(readers.triplets(table, layout, reporter), source)
    if layout.kind is Kind.POSITIVE_PAIRS:
        return _positive_pairs(readers.positive_pairs(table, layout, reporter), source)
    if layout.kind is Kind.LABELLED_PAIRS:
        return _labelled(readers.labelled_pairs(table, layout, reporter), source)
    return _scored(readers.scored_pairs(table, layout, reporter), source)


def _sentences(sentences: list[str], source: str) -> _Body:
    counts = Counter(sentences)
    repeats = [_repeats(len(sentences) - len(counts), "sentences")]
    if len(counts) < len(sentences):
        sentence, times = counts.most_common(1)[0]
        repeats.append(f"most often, {times:,} times: {quoted(sentence, 60)}")
    use = [f"--set data.unlabelled={source}   unlabelled text for stage 2 of the semi-supervised settings"]
    return _Body(len(sentences), [("length", _lengths(sentences)), ("repeats", repeats)], use)


def _triplets(triplets: Triplets, source: str) -> _Body:
    oddities = {
        "negatives equal their anchor, so they teach what is wrong": _share(triplets.anchors, triplets.negatives),
        "negatives equal their positive, so they cancel out": _share(triplets.positives, triplets.negatives),
    }
    use = [f"--set data.nli={source}   stage 1, and stage 2 of the supervised setting"]
    return _belong_together(triplets, oddities, use)


def _positive_pairs(pairs: PositivePairs, source: str) -> _Body:
    use = [
        f"--set data.nli={source}   stage 2 of simcse-sup and promptbert-sup, and of diffaug-sup with stage1=null",
        "stage 1 and auxiliary losses learn from contradictions, and need triplets or labelled pairs",
    ]
    body = _belong_together(pairs, {}, use)
    negatives = ["none of their own: a pair's are the positives of the other pairs in its batch"]
    if repeated := len(pairs) - len(set(pairs.positives)):
        negatives.append(f"{repeated:,} positives repeat an earlier one: in one batch they are negatives of each other")
    body.parts.append(("negatives", negatives))
    return body


def _belong_together(pairs: PositivePairs, oddities: dict[str, int], use: list[str]) -> _Body:
    """What is said of pairs with and without a hard negative."""
    rows = len(pairs)
    repeats = [_repeats(rows - len(set(pairs)), "rows"), _repeats(rows - len(set(pairs.anchors)), "anchors")]
    alike = {"positives equal their anchor, so they teach little": _share(pairs.anchors, pairs.positives)}
    odd = [f"{share:,} {what}" for what, share in (alike | oddities).items() if share]
    texts = [text for column in zip(*pairs, strict=True) for text in column]
    parts: list[Part] = [("length", _lengths(texts)), ("repeats", repeats)]
    if odd:
        parts.append(("odd", odd))
    return _Body(rows, parts, use)


def _labelled(pairs: LabelledPairs, source: str) -> _Body:
    counts = Counter(pairs.labels)
    labels = [f"{label.value}: {counts[label]:,} ({_percent(counts[label], len(pairs))})" for label in Label]
    labels = [line for label, line in zip(Label, labels, strict=True) if counts[label]]
    judged: dict[tuple[str, str], set[Label]] = {}
    for premise, hypothesis, label in pairs:
        judged.setdefault((premise, hypothesis), set()).add(label)
    repeats = [_repeats(len(pairs) - len(judged), "pairs")]
    if conflicts := sum(len(found) > 1 for found in judged.values()):
        repeats.append(f"{conflicts:,} pairs occur with different labels")
    parts: list[Part] = [
        ("labels", labels),
        ("length", _lengths([*pairs.premises, *pairs.hypotheses])),
        ("repeats", repeats),
    ]
    if counts[Label.ENTAILMENT] in (0, len(pairs) - counts[Label.NEUTRAL]):
        use = ["unusable: both entailments and their opposite are needed"]
        return _Body(len(pairs), parts, use, usable=False)
    try:
        built = len(triplets_from_pairs(pairs))
    except DiffaugError:
        parts.append(("triplets", ["none can be built: no premise comes with both an entailment and its opposite"]))
        use = [f"--set data.nli={source}   stage 1; stage 2 of the supervised setting would need triplets"]
    else:
        parts.append(("triplets", [f"{built:,} can be built from premises with an entailment and its opposite"]))
        use = [f"--set data.nli={source}   stage 1, and as triplets stage 2 of the supervised setting"]
    return _Body(len(pairs), parts, use)


def _scored(pairs: ScoredPairs, source: str) -> _Body:
    low, high = min(pairs.scores), max(pairs.scores)
    judged: dict[frozenset[str], set[float]] = {}
    for first, second, score in pairs:
        judged.setdefault(frozenset((first, second)), set()).add(score)
    repeats = [_repeats(len(pairs) - len(judged), "pairs")]
    if conflicts := sum(len(found) > 1 for found in judged.values()):
        repeats.append(f"{conflicts:,} pairs occur with different scores")
    parts: list[Part] = [
        ("scores", _bands(pairs.scores)),
        ("length", _lengths([*pairs.first, *pairs.second])),
        ("repeats", repeats),
    ]
    if low == high:
        use = [f"unusable: every score is {low:g}, so no ranking can be compared with them"]
        return _Body(len(pairs), parts, use, usable=False)
    if len(pairs) >= 10:
        # Fisher's interval for a rank correlation of 0.8.
        margin = 100 * (1 - 0.8**2) * 1.96 * 1.03 / np.sqrt(len(pairs) - 3)
        trust = f"by chance alone, a score of 80 on {len(pairs):,} pairs is uncertain by about {margin:.0f} points"
    else:
        trust = f"{len(pairs)} pairs are too few to tell models apart"
    use = [
        f"--set data.dev={source}   to choose the best checkpoint",
        f"--set data.test={source}   to measure the result (never the same file as dev)",
        trust,
    ]
    return _Body(len(pairs), parts, use)


def _columns(table: Table, header: bool = False) -> str:
    if table.names is not None:
        return ", ".join(table.names)
    first = table.head()[0][1]
    if header:
        return ", ".join(str(cell).strip() for cell in first) + " (from the header)"
    return f"{len(first)}; the first row: " + ", ".join(quoted(cell, 30) for cell in first[:6])


def _kind(found: Recognised) -> list[str]:
    looks = "looks like " if found.doubts else ""
    return [f"{looks}{found.layout.kind.value} ({found.layout.why})", *(f"but {doubt}" for doubt in found.doubts)]


def _problems(problems: ProblemCount) -> list[Part]:
    if not problems:
        return []
    lines = [f"{len(problems):,} in all: {problems}"]
    lines += [
        f"{problem.unit} {problem.number:,}: {problem.detail}"
        for problem in sorted(problems.first, key=lambda p: p.number)
    ]
    if len(problems) > len(problems.first):
        lines.append("...")
    return [("problems", lines)]


def _lengths(texts: list[str]) -> list[str]:
    words = np.fromiter((len(text.split()) for text in texts), dtype=np.int64, count=len(texts))
    median, most = np.percentile(words, [50, 90]).astype(int)
    lines = [
        f"half of the sentences have at most {median} words, nine in ten at most {most}, the longest {words.max():,}"
    ]
    sample = texts[:: max(1, len(texts) // _TOKENISED)]
    long = float(np.mean(_piece_counts(sample) > _USUAL_PIECES))
    share = "none" if long == 0 else f"{100 * long:.1f} %" if long >= 0.001 else "under 0.1 %"
    if len(sample) < len(texts):
        share = f"about {share}"
    cut = " and would be cut there" if long else ""
    lines.append(f"{share} of them have more than the usual {_USUAL_PIECES} word pieces{cut}")
    return lines


def _piece_counts(texts: list[str]) -> np.ndarray:
    """Word pieces of each text by the embedded encoder's tokenizer; another model's will differ a little."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # Half a surrogate pair is legal in a Python string and in nothing else.
    clean = [text if text.isascii() else text.encode("utf-8", "replace").decode() for text in texts]
    return np.array([len(encoding.ids) for encoding in tokenizer.encode_batch_fast(clean, add_special_tokens=False)])


def _bands(scores: Sequence[float]) -> list[str]:
    """Minimum, maximum, mean, and how many scores lie in each fifth of the range."""
    values = np.asarray(scores)
    lines = [f"from {values.min():g} to {values.max():g}, on average {values.mean():.2f}"]
    if values.min() < values.max():
        counts, edges = np.histogram(values, bins=5)
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
            bar = "#" * round(30 * count / counts.max())
            lines.append(f"{low:6.2f} to {high:6.2f}  {count:>7,}  {bar}")
    return lines


def _share(first: Iterable[str], second: Iterable[str]) -> int:
    return sum(a == b for a, b in zip(first, second, strict=True))


def _repeats(count: int, what: str) -> str:
    return f"no {what} occur twice" if count == 0 else f"{count:,} {what} repeat an earlier one"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"
