"""`diffaug data check`: what a file holds, and what it can be used for."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from diffaug.data.advice import (
    column_settings,
    encoding_advice,
    label_meanings,
    label_options,
    language_advice,
    other_command,
    propose_columns,
    setting,
    train_command,
)
from diffaug.data.columns import (
    ROLES,
    Columns,
    Kind,
    Layout,
    find_layout,
    is_negatives_name,
    last_column,
    recognise,
    shown_name,
)
from diffaug.data.decisive import check_decisive
from diffaug.data.labels import Label
from diffaug.data.leakage import find_leakage, sentence_columns
from diffaug.data.problems import ProblemCount, quoted
from diffaug.data.read import LabelNames, open_source, read_table
from diffaug.data.records import (
    Classes,
    LabelledPairs,
    PositivePairs,
    ScoredPairs,
    Triplets,
    normal,
    summary,
    triplets_from_pairs,
)
from diffaug.data.table import Source, Table, split_index
from diffaug.errors import DiffaugError

# The maximum length of a sentence unless a recipe sets another one.
_USUAL_TOKENS = 32
# Of more sentences than this, a sample is tokenised.
_TOKENISED = 20_000
# Of the labels of a sentence or pair that has several.
_SHOWN_VALUES = 4
_FASTTEXT = "__label__"
_LABEL_ORDER = ("entailment", "neutral", "contradiction", "same", "different")
_TOKENIZER = Path(__file__).parent.parent / "assets" / "mini" / "tokenizer.json"


@dataclass
class DataReport:
    """What was found: ``parts`` to print, each a heading and its lines, and whether the data can be used."""

    parts: list[tuple[str, list[str]]] = field(default_factory=list)
    usable: bool = True

    def add(self, heading: str, *lines: str) -> None:
        """Add a part."""
        self.parts.append((heading, list(lines)))

    def __str__(self) -> str:
        width = max(len(heading) for heading, _ in self.parts) + 2
        rows = [(heading if i == 0 else "", line) for heading, lines in self.parts for i, line in enumerate(lines)]
        return "\n".join(f"{heading:<{width}}{line}" for heading, line in rows)


def check(
    source: Source,
    columns: Columns | None = None,
    kind: Kind | None = None,
    against: Sequence[Source] = (),
    labels: LabelNames | None = None,
) -> DataReport:
    """Read all of ``source`` and describe it.

    Args:
        source: anything that the readers take.
        columns: which column is what, if the names are not the usual ones.
        kind: of the data; left out, it is recognised.
        against: evaluation data, whose sentences and pairs should not occur in ``source``.
        labels: what unusual labels mean; see `diffaug.data.read.read_labelled_pairs`.
    """
    problems, report = ProblemCount(), DataReport()
    layout = None
    try:
        table, reporter = open_source(source, problems)
        report.add("file", f"{table.name}: {table.format}")
        columns_part = len(report.parts)
        if not table.plain_text:
            report.add("columns", _columns(table))
        layout, doubt = recognise(table, columns) if kind is None else (find_layout(table, kind, columns), None)
        if layout.header:
            report.parts[columns_part] = ("columns", [_columns(table, layout)])
        doubt = doubt if labels is None else None
        name = f"{layout.kind.value} ({layout.why})"
        report.add("kind", *([name] if doubt is None else [f"looks like {name}", f"but {doubt}"]))
        quotes = _quotes(table)
        has_splits = split_index(layout.column_names(table)) is not None
        data = read_table(table, layout, reporter, labels)
    except DiffaugError as error:
        _add_problems(report, problems)
        if "not UTF-8" in problems.kinds:  # whatever else the error is about: the rows are incomplete
            report.add("verdict", "unusable: the file is not UTF-8", *encoding_advice(source))
        else:
            advice = encoding_advice(source) if "not UTF-8" in str(error) else _advice(source, columns, layout)
            report.add("verdict", f"unusable: {error}", *advice)
        report.usable = False
        return report
    skipped = f", {len(reporter.skipped):,} skipped ({reporter.skipped})" if reporter.skipped else ""
    with_problems = f", {len(problems):,} with problems" if problems else ""
    report.add("rows", f"{len(data):,} usable{skipped}{with_problems}")
    use = _describe(data, report, "FILE" if not isinstance(source, (str, os.PathLike)) else str(source))
    if notes := [*reporter.notes, *quotes]:
        report.add("note", *notes)
    for other in against:
        _add_shared(report, data, other)
    _add_problems(report, problems)
    if len(problems) > len(data):
        use = ["unusable: most rows have problems, so the file probably has another format"]
        use += encoding_advice(source) if "not UTF-8" in problems.kinds else []
        report.usable = False
    elif report.usable:
        if problems:
            use.append("rows with problems raise an error unless they are skipped: --set data.on_bad=skip")
            use += encoding_advice(source) if "not UTF-8" in problems.kinds else []
        if has_splits and layout.kind is Kind.SCORED_PAIRS:
            use.append("data.dev reads the rows of the split dev, data.test those of the split test")
        if columns and layout.kind is Kind.SCORED_PAIRS:
            use.append("in a recipe with " + " ".join(f"--set {one}" for one in column_settings("dev", columns)))
        use += language_advice(sentence_columns(data))
    commands: list[str] = []
    if report.usable and isinstance(source, (str, os.PathLike)):
        commands = _commands(data, layout.kind, str(source), columns, labels, bool(problems), use)
    if isinstance(data, list) and not columns:
        use += _hidden_classes(source)
    report.add("use" if report.usable else "verdict", *use)
    if commands:
        report.add("type", *commands)
    return report


def _commands(
    data: Any,
    kind: Kind,
    source: str,
    columns: Columns | None,
    labels: LabelNames | None,
    problems: bool,
    use: list[str],
) -> list[str]:
    """The commands that use the data; what they need to know is added to ``use``."""
    if isinstance(data, list):
        return [train_command(kind, source, columns, skip=problems)]
    refused = _refused_in_training(data)
    if refused:
        use.append(f"{refused} raise an error unless they are left out: --set data.on_bad=skip")
    all_pairs = isinstance(data, LabelledPairs) and (Label.NOT_ENTAILMENT in data.labels or not _triplets(data))
    train = train_command(kind, source, columns, labels, all_pairs=all_pairs, skip=problems or bool(refused))
    commands = [other_command("diffaug eval --model embedded --pairs", source, columns)] * (kind is Kind.SCORED_PAIRS)
    try:
        check_decisive(data, "the labels")
    except DiffaugError as error:
        use.append(f"not for diffaug adapt: {error}")
        return [*commands, train]
    options = [label_meanings(labels or {}), "--on-bad skip" * problems, "--out adapted"]
    adapt = other_command("diffaug adapt embedded --labels", source, columns, " ".join(filter(None, options)))
    use.append("diffaug adapt tries several ways to learn from these labels; name your model in place of embedded")
    return [*commands, adapt, train]


def _quotes(table: Table) -> list[str]:
    """A hint if the cells of a TSV file seem to be in quotes, which are part of the text there."""
    if not (table.may_have_header and table.separator == "\t" and table.format.startswith("a TSV")):
        return []
    rows = [[str(cell) for cell in cells] for _, cells in table.head()]
    quoted_rows = [[cell for cell in cells if len(cell) > 1 and cell[0] == cell[-1] == '"'] for cells in rows]
    doubled = any('""' in cell[1:-1] for cells in quoted_rows for cell in cells)
    if doubled or 2 * sum(map(bool, quoted_rows)) > len(rows):
        return [
            "some cells are in quotes, which are part of the text in a .tsv file; if they are not, rename it to .csv"
        ]
    return []


def _refused_in_training(data: Any) -> str:
    """Which rows training refuses though each can be read; empty if there are none."""
    if isinstance(data, Classes):
        rows = _judged(data)
        if any(len(found) > 1 for found in rows.values()):
            return "sentences with several classes"
        counts = Counter(name for names in rows.values() for name in names)
        return "classes with one sentence" if 1 in counts.values() else ""
    if isinstance(data, LabelledPairs) and any(len(found) > 1 for found in _judged(data.without_neutral()).values()):
        return "pairs with several labels"
    return ""


def _hidden_classes(source: Source) -> list[str]:
    """What a table of sentences may be beside that: columns of classes have many names."""
    with suppress(DiffaugError):
        table, _ = open_source(source, ProblemCount())
        lines = [str(cells[0]) for _, cells in table.head()] if table.plain_text else []
        if 2 * sum(line.startswith(_FASTTEXT) for line in lines) > len(lines):
            text, tsv = shlex.quote(str(source)), shlex.quote(f"{source}.tsv")
            return [
                f"the lines begin with {_FASTTEXT}, in which fastText writes the class of a sentence; if so, type: "
                rf"(printf 'label\ttext\n'; sed -E 's/^{_FASTTEXT}([^ ]+) /\1\t/' {text}) > {tsv}"
            ]
        proposals = [columns for kind, columns in propose_columns(table) if kind is Kind.CLASSES]
        return [
            f"the column {columns['class']} may hold the class of each sentence; if so, type: "
            + other_command("diffaug data check", str(source), columns)
            for columns in proposals
        ]
    return []


def _advice(source: Source, columns: Columns | None, layout: Layout | None) -> list[str]:
    """A mapping of columns or labels to confirm, if the content suggests one."""
    if not isinstance(source, (str, os.PathLike)):
        return []
    with suppress(DiffaugError):
        table, _ = open_source(source, ProblemCount())
        if layout is not None and layout.kind is Kind.LABELLED_PAIRS:
            values = list(dict.fromkeys(str(value).strip() for value in last_column(table, layout)))
            if 2 <= len(values) <= 3:
                typed = other_command("diffaug data check", str(source), columns, label_options(values))
                return [f"say what the labels mean; if this guess is right, type: {typed}"]
            return [
                f"say what each of the {len(values)} labels means: diffaug data check ... --label LABEL=MEANING (same, "
                "different, entailment, neutral or contradiction)"
            ]
        if not columns and (layout is None or layout.refusal is not None):
            proposals = propose_columns(table) if layout is None else _with_negatives(table, layout)
            return [
                f"by their content, the columns may be {kind.value}; if so, type: "
                + other_command("diffaug data check", str(source), mapping)
                for kind, mapping in proposals
            ]
    return []


def _with_negatives(table: Table, layout: Layout) -> list[tuple[Kind, dict[str, str]]]:
    """The proposed columns for a table that must not be read as positive pairs."""
    names = layout.column_names(table)
    if negatives := [name for name in names if is_negatives_name(name)]:
        chosen = [*(names[index] for index in layout.indices), negatives[0]]
        return [(Kind.TRIPLETS, dict(zip(ROLES[Kind.TRIPLETS], chosen, strict=True)))]
    return propose_columns(table)


def _add_shared(report: DataReport, data: Any, other: Source) -> None:
    """What evaluation data shares with ``data``; rows of it that cannot be used are left out."""
    table, reporter = open_source(other, ProblemCount())
    layout, _ = recognise(table)
    evaluation = sentence_columns(read_table(table, layout, reporter))
    (found,) = find_leakage({table.name: evaluation}, [sentence_columns(data)]).values()
    lines = [f"{table.name}: {found}"]
    if found:
        lines.append(
            "remove these rows from one of the files: a score on sentences that were trained on is too high (nearly: "
            f"at least {100 * found.threshold:.0f} % of the word pairs are the same)"
        )
    report.add("shared", *lines)


def _describe(data: Any, report: DataReport, source: str) -> list[str]:
    """Add what is special about a kind of data; returns what it can be used for."""
    if isinstance(data, LabelledPairs):
        return _describe_labelled(data, report, source)
    if isinstance(data, ScoredPairs):
        return _describe_scored(data, report, source)
    if isinstance(data, PositivePairs):
        return _describe_positive(data, report, source)
    if isinstance(data, Classes):
        return _describe_classes(data, report, source)
    counts = Counter(data)
    _add_lengths(report, data)
    repeats = [_repeats(len(data) - len(counts), "sentences")]
    if len(counts) < len(data):
        sentence, times = counts.most_common(1)[0]
        repeats.append(f"most frequent, {times:,} times: {quoted(sentence, 60)}")
    report.add("repeats", *repeats)
    return [_use("unlabelled", source, "unlabelled text for stage 2 of the semi-supervised settings")]


def _describe_positive(pairs: PositivePairs, report: DataReport, source: str) -> list[str]:
    _add_lengths(report, [text for row in pairs for text in row])
    rows = len(pairs)
    report.add("repeats", _repeats(rows - len(set(pairs)), "rows"), _repeats(rows - len(set(pairs.anchors)), "anchors"))
    equal = {"positives equal their anchor and teach little": (pairs.anchors, pairs.positives)}
    if isinstance(pairs, Triplets):
        equal["negatives equal their anchor and are wrong"] = (pairs.anchors, pairs.negatives)
        equal["negatives equal their positive and cancel it"] = (pairs.positives, pairs.negatives)
    odd = [f"{count:,} {what}" for what, columns in equal.items() if (count := _count_equal(*columns))]
    if odd:
        report.add("odd", *odd)
    if isinstance(pairs, Triplets):
        return [_use("nli", source, "stage 1, and stage 2 of the supervised setting")]
    negatives = ["no hard negatives: the positives of the other pairs in a batch are the negatives of a pair"]
    if repeated := rows - len(set(pairs.positives)):
        negatives.append(f"{repeated:,} positives repeat an earlier one; in one batch they are negatives of each other")
    report.add("negatives", *negatives)
    return [_use("nli", source, "stage 1 and stage 2 of adapt-diffaug, simcse-sup and other supervised recipes")]


def _describe_classes(data: Classes, report: DataReport, source: str) -> list[str]:
    sizes = Counter(data.classes).most_common()
    report.add("classes", summary(data), *(f"{quoted(name)}: {count:,}" for name, count in sizes[:5]))
    _add_lengths(report, data.sentences)
    judged = _judged(data)
    _add_repeats(report, judged, len(data), "sentences", "classes")
    usable = Counter(name for names in judged.values() if len(names) == 1 for name in names)
    if sum(count > 1 for count in usable.values()) < 2:
        report.usable = False
        return ["unusable: at least two classes with two sentences each are needed"]
    alike: dict[str, str] = {}
    odd = [
        f"the classes {quoted(alike[normal(name)])} and {quoted(name)} differ only in case or spaces"
        for name, _ in sizes
        if alike.setdefault(normal(name), name) != name
    ][:_SHOWN_VALUES]
    if single := [name for name, count in sizes if count == 1]:
        odd.append(f"{len(single):,} classes have only one sentence, for example {quoted(single[0])}")
    if odd:
        report.add("odd", *odd)
    return [_use("nli", source, "stage 1 and stage 2 of adapt-diffaug and adapt-simcse")]


def _use(key: str, source: str, words: str) -> str:
    return f"--set {setting(f'data.{key}', source)}   {words}"


def _triplets(pairs: LabelledPairs) -> int:
    """How many triplets can be built."""
    with suppress(DiffaugError):
        return len(triplets_from_pairs(pairs))
    return 0


def _describe_labelled(pairs: LabelledPairs, report: DataReport, source: str) -> list[str]:
    counts, words = Counter(pairs.labels), Counter(pairs.words())
    order = [word for word in _LABEL_ORDER if words[word]]
    report.add("labels", *(f"{word}: {words[word]:,} ({100 * words[word] / len(pairs):.1f} %)" for word in order))
    _add_lengths(report, [*pairs.premises, *pairs.hypotheses])
    _add_repeats(report, _judged(pairs), len(pairs), "pairs", "labels")
    if counts[Label.ENTAILMENT] in (0, len(pairs) - counts[Label.NEUTRAL]):
        report.usable = False
        return [
            "unusable: both entailments and contradictions (or pairs labelled same and pairs labelled different) are "
            "needed; pairs that all match are read with --kind positive and both columns named, as in --column "
            "anchor=sentence1 --column positive=sentence2"
        ]
    if Label.NOT_ENTAILMENT in counts:
        report.add("training", summary(pairs))
        return [_use("nli", source, "stage 1 and stage 2 of adapt-diffaug and adapt-simcse, which use all pairs")]
    if not (built := _triplets(pairs)):
        report.add("triplets", "none can be built: no premise has both an entailment and a contradiction")
        return [_use("nli", source, "stage 1 and stage 2 of adapt-diffaug and adapt-simcse, which use pairs")]
    report.add(
        "triplets",
        f"{built:,} can be built from premises with an entailment and a contradiction",
        f"stage 1 learns from {len(pairs) - counts[Label.NEUTRAL]:,} of the {len(pairs):,} pairs: all but neutral ones",
    )
    return [_use("nli", source, "stage 1, and as triplets stage 2 of the supervised setting")]


def _describe_scored(pairs: ScoredPairs, report: DataReport, source: str) -> list[str]:
    report.add("scores", *_histogram(pairs.scores))
    _add_lengths(report, [*pairs.first, *pairs.second])
    _add_repeats(report, _judged(pairs), len(pairs), "pairs", "scores")
    if min(pairs.scores) == max(pairs.scores):
        report.usable = False
        return [f"unusable: every score is {pairs.scores[0]:g}, so there is no ranking to compare with"]
    if len(pairs) >= 10:
        # Fisher's interval for a rank correlation of 0.8.
        margin = 100 * (1 - 0.8**2) * 1.96 * 1.03 / np.sqrt(len(pairs) - 3)
        precision = f"95 % confidence interval of a score of 80 on {len(pairs):,} pairs: about ±{margin:.0f} points"
    else:
        precision = f"{len(pairs)} pairs are too few to compare models"
    return [
        _use("dev", source, "to select the best checkpoint"),
        _use("test", source, "to measure the result (never the same file as dev)"),
        _use("nli", source, "to learn from, with adapt-diffaug or adapt-simcse (another file than dev and test)"),
        precision,
    ]


def _columns(table: Table, layout: Layout | None = None) -> str:
    if layout is not None:
        return ", ".join(map(shown_name, layout.column_names(table))) + " (from the header)"
    if table.names is not None:
        return ", ".join(map(shown_name, table.names))
    first = table.head()[0][1]
    return f"{len(first)}; the first row: " + ", ".join(quoted(cell, 30) for cell in first[:6])


def _add_problems(report: DataReport, problems: ProblemCount) -> None:
    if problems:
        first = sorted(problems.first, key=lambda problem: problem.number)
        lines = [f"{problem.unit} {problem.number:,}: {problem.detail}" for problem in first]
        more = ["..."] if len(problems) > len(first) else []
        report.add("problems", f"{len(problems):,} in total: {problems}", *lines, *more)


def _judged(data: LabelledPairs | ScoredPairs | Classes) -> dict[Hashable, set[Any]]:
    """What each distinct pair or sentence was judged to be."""
    values: dict[Hashable, set[Any]] = {}
    found = data.words() if isinstance(data, LabelledPairs) else None
    for i, (*texts, value) in enumerate(data):
        value = value if found is None else found[i]
        item = frozenset(texts) if isinstance(data, ScoredPairs) else tuple(texts)
        values.setdefault(item, set()).add(value)
    return values


def _add_repeats(report: DataReport, judged: Mapping[Hashable, set[Any]], rows: int, items: str, what: str) -> None:
    """Repeated pairs or sentences, and how many have different labels, scores or classes."""
    conflicts = {item: found for item, found in judged.items() if len(found) > 1}
    lines = []
    if conflicts:
        item, found = next(iter(conflicts.items()))
        shown = " and ".join(quoted(text, 50) for text in cast("Iterable[str]", item))
        some = [text if len(text) <= 40 else f"{text[:37]}..." for text in sorted(map(str, found))[:_SHOWN_VALUES]]
        values = " and ".join(some) + " ..." * (len(found) > _SHOWN_VALUES)
        lines = [f"{len(conflicts):,} {items} occur with different {what}, for example {shown}: {values}"]
    report.add("repeats", _repeats(rows - len(judged), items), *lines)


def _add_lengths(report: DataReport, texts: list[str]) -> None:
    words = np.fromiter((len(text.split()) for text in texts), dtype=np.int64, count=len(texts))
    median, most = np.percentile(words, [50, 90]).astype(int)
    sample = texts[:: max(1, len(texts) // _TOKENISED)]
    long = float(np.mean(_token_counts(sample) > _USUAL_TOKENS))
    share = "none" if long == 0 else f"{100 * long:.1f} %" if long >= 0.001 else "less than 0.1 %"
    about = "about " if len(sample) < len(texts) else ""
    report.add(
        "length",
        f"median {median} words, 90th percentile {most}, maximum {words.max():,}",
        f"{about}{share} of the sentences have more than the usual {_USUAL_TOKENS} tokens"
        + (" and would be truncated (data.max_length)" if long else ""),
    )


def _token_counts(texts: list[str]) -> np.ndarray:
    """Tokens of each text by the embedded encoder's tokenizer; those of another model differ a little."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # A Python string may contain half a surrogate pair, UTF-8 may not.
    clean = [text if text.isascii() else text.encode("utf-8", "replace").decode() for text in texts]
    return np.array([len(encoding.ids) for encoding in tokenizer.encode_batch_fast(clean, add_special_tokens=False)])


def _histogram(scores: Sequence[float]) -> list[str]:
    """Minimum, maximum, mean, and the number of scores in each fifth of the range."""
    values = np.asarray(scores)
    lines = [f"from {values.min():g} to {values.max():g}, mean {values.mean():.2f}"]
    if values.min() < values.max():
        counts, edges = np.histogram(values, bins=5)
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
            bar = "#" * round(30 * count / counts.max())
            lines.append(f"{low:6.2f} to {high:6.2f}  {count:>7,}  {bar}")
    return lines


def _count_equal(first: Iterable[str], second: Iterable[str]) -> int:
    return sum(a == b for a, b in zip(first, second, strict=True))


def _repeats(count: int, what: str) -> str:
    return f"no repeated {what}" if count == 0 else f"{count:,} {what} repeat an earlier one"
