"""The public tasks: names, subtasks, row counts and published files.

Scores are comparable only on the same data, so all row counts are checked before scoring.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from diffaug.config.registry import TASKS
from diffaug.data.public.catalogue import DATASETS
from diffaug.errors import DiffaugError

STS_PROTOCOL = "sts_all_spearman"
"""100 times Spearman's correlation of cosines and gold scores, over the concatenated pairs of all subtasks."""
FOLDS_PROTOCOL = "logreg_10fold"
"""Logistic regression on frozen vectors; accuracy in nested 10-fold cross-validation, which also chooses L2."""
TEST_PROTOCOL = "logreg_test"
"""Logistic regression on frozen vectors; test accuracy, L2 chosen on the dev split or by 10-fold cross-validation."""


@dataclass(frozen=True)
class StsSpec:
    """An STS task.

    Attributes:
        name: the name in tables.
        subtasks: the number of rows of each subtask, in concatenation order.
        tsv: the files ``{tsv}.{subtask}.tsv`` contain ``score<TAB>sentence<TAB>sentence``.
        folders: for a SemEval year, the names of the folder with ``STS.input.*.txt`` and ``STS.gs.*.txt``, in SentEval
            and in the organisers' archive.
        original: for other tasks, the file of the original release.
        hub: name, revision and split of a data set on the hub with exactly these pairs, without subtasks.
        extra: not one of the seven STS tasks: evaluated only by name, and never averaged.
    """

    name: str
    subtasks: dict[str, int]
    tsv: str
    folders: tuple[str, ...] = ()
    original: str | None = None
    hub: tuple[str, str, str] | None = None
    extra: bool = False

    @property
    def rows(self) -> int:
        return sum(self.subtasks.values())


STS = (
    StsSpec(
        "STS12",
        {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399},
        tsv="STS12",
        folders=("STS12-en-test", "test-gold"),
        hub=("mteb/sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384", "test"),
    ),
    StsSpec(
        "STS13",
        {"FNWN": 189, "headlines": 750, "OnWN": 561},
        tsv="STS13",
        folders=("STS13-en-test", "test-gs"),
        hub=("mteb/sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca", "test"),
    ),
    StsSpec(
        "STS14",
        {"deft-forum": 450, "deft-news": 300, "headlines": 750, "images": 750, "OnWN": 750, "tweet-news": 750},
        tsv="STS14",
        folders=("STS14-en-test", "sts-en-test-gs-2014"),
        hub=("mteb/sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375", "test"),
    ),
    StsSpec(
        "STS15",
        {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
        tsv="STS15",
        folders=("STS15-en-test", "test_evaluation_task2a"),
        hub=("mteb/sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3", "test"),
    ),
    StsSpec(
        "STS16",
        {"answer-answer": 254, "headlines": 249, "plagiarism": 230, "postediting": 244, "question-question": 209},
        tsv="STS16",
        folders=("STS16-en-test", "sts2016-english-with-gs-v1.0"),
        hub=("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513", "test"),
    ),
    StsSpec(
        "STS-B",
        {"test": 1379},
        tsv="STSB",
        original="sts-test.csv",
        hub=("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "test"),
    ),
    # The hub's mteb/sickr-sts contains train, trial and test (9,927 pairs), so its score is not comparable.
    StsSpec("SICK-R", {"test": 4927}, tsv="SICK", original="SICK_test_annotated.txt"),
    StsSpec(
        "STS-B-dev",
        {"dev": 1500},
        tsv="STSB",
        original="sts-dev.csv",
        hub=("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "validation"),
        extra=True,
    ),
)


@dataclass(frozen=True)
class TransferFile:
    """A file of a transfer task: its name, the names of its folder, and its number of rows.

    ``rows`` is None if only the sum over the task's files is known.
    """

    name: str
    folders: tuple[str, ...]
    rows: int | None = None


@dataclass(frozen=True)
class TransferSpec:
    """A transfer task, read from SentEval's files.

    Attributes:
        name: the name in tables.
        layout: the file format: ``classes`` (one file per class), ``sst``, ``trec`` or ``mrpc``.
        files: positive, negative for ``classes``; train, (dev,) test for the others.
        rows: the number of rows of all files together.
    """

    name: str
    layout: str
    files: tuple[TransferFile, ...]
    rows: int

    @property
    def protocol(self) -> str:
        return FOLDS_PROTOCOL if self.layout == "classes" else TEST_PROTOCOL


def _classes(name: str, positive: str, negative: str, folder: str, rows: tuple[int, int] | int) -> TransferSpec:
    """A task with one file per class; ``folder`` is its folder in the archive that SentEval downloads."""
    each = rows if isinstance(rows, tuple) else (None, None)
    files = tuple(TransferFile(file, (name, folder), n) for file, n in zip((positive, negative), each, strict=True))
    return TransferSpec(name, "classes", files, sum(rows) if isinstance(rows, tuple) else rows)


def _splits(name: str, layout: str, folders: tuple[str, ...], files: dict[str, int]) -> TransferSpec:
    return TransferSpec(
        name, layout, tuple(TransferFile(file, folders, n) for file, n in files.items()), sum(files.values())
    )


TRANSFER = (
    _classes("MR", "rt-polarity.pos", "rt-polarity.neg", "rt10662", (5331, 5331)),
    _classes("CR", "custrev.pos", "custrev.neg", "customerr", 3775),
    _classes("SUBJ", "subj.objective", "subj.subjective", "subj", (5000, 5000)),
    _classes("MPQA", "mpqa.pos", "mpqa.neg", "mpqa", 10606),
    _splits(
        "SST2", "sst", ("binary", "sst2"), {"sentiment-train": 67349, "sentiment-dev": 872, "sentiment-test": 1821}
    ),
    _splits("TREC", "trec", ("TREC", "trec"), {"train_5500.label": 5452, "TREC_10.label": 500}),
    _splits("MRPC", "mrpc", ("MRPC", "mrpc"), {"msr_paraphrase_train.txt": 4076, "msr_paraphrase_test.txt": 1725}),
)

GEOMETRY = "geometry"
GROUPS = {"sts": [s.name for s in STS if not s.extra], "transfer": [t.name for t in TRANSFER], GEOMETRY: [GEOMETRY]}


def choose_tasks(wanted: str | Iterable[str]) -> list[str]:
    """Expand groups (sts, transfer, geometry) and task names to task names in table order; ignores case and hyphens.

    Tasks of plugins come last.

    Raises:
        DiffaugError: an unknown name, or a plugin's task with the name of another task or group.
    """
    words = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    known = {_plain(name): [name] for name in [*(s.name for s in STS), *(t.name for t in TRANSFER)]}
    known |= {_plain(group): names for group, names in GROUPS.items()}
    known |= {"stsbtest": ["STS-B"], "stsbenchmark": ["STS-B"], "sickrtest": ["SICK-R"], "sst": ["SST2"]}
    for name in TASKS.names():
        if _plain(name) in known:
            raise DiffaugError(f"the task {name!r} of a plugin has the name of a public task; register another name")
        known[_plain(name)] = [name]
    chosen: set[str] = set()
    for word in words:
        if not word.strip():
            continue
        if _plain(word) not in known:
            near = difflib.get_close_matches(_plain(word), known, n=1)
            hint = f"; did you mean {known[near[0]][0] if len(known[near[0]]) == 1 else near[0]}?" if near else "."
            groups = ", ".join(GROUPS)
            names = ", ".join([*(s.name for s in STS), *(t.name for t in TRANSFER), *TASKS.names()])
            raise DiffaugError(f"unknown task {word.strip()!r}{hint} Groups: {groups}. Tasks: {names}")
        chosen.update(known[_plain(word)])
    order = [*(s.name for s in STS), *(t.name for t in TRANSFER), GEOMETRY, *TASKS.names()]
    return [name for name in order if name in chosen]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


# SHA-256 of published files: the TSV layout, and SentEval's transfer files. A file with another checksum and the right
# number of rows may differ harmlessly (in line endings, for example), so it only causes a warning.
CHECKSUMS = {
    **{file.name: file.sha256 for source in DATASETS for file in source.files if file.sha256 is not None},
    "STS12.MSRpar.tsv": "0152db6de47cb0c309482425118281b8afad65a066ad961c96930d511d62dba1",
    "STS12.MSRvid.tsv": "2d5e703f25d55e278bfd4f660d1cf5eb138ee4ad720ecb26ee683fcb4c2b1459",
    "STS12.SMTeuroparl.tsv": "b70cbc8262db9fe178341a2e427d713be2fb440b1cccc1736cd0e66f0ac8ff59",
    "STS12.surprise.OnWN.tsv": "5dd0ac6d1bdc5b8801c387e3d93819675e19f08c3bde7573a6dda3ed289b7b87",
    "STS12.surprise.SMTnews.tsv": "4411fa80970318fea7e6d55787ce42f4ccbcafc75ea22f1c7d444639935203a9",
    "STS14.OnWN.tsv": "072ffe5052223b45018a588c3f06d48a3b16bf7a7ea7e9f235fce89342ec8f3f",
    "STS14.deft-forum.tsv": "b63fb55c879320a78cbd97d206a776308f9563c9ded237f5dbb278650bbc63d1",
    "STS14.deft-news.tsv": "01eeda8e97d98471f34ca725060e2cea37543978b151c21996ea4d1258dcece9",
    "STS14.headlines.tsv": "e7fac78f5b7d30cf4c0e6156a26336188c86d1584809b58e6d4f1f5ba3f61b72",
    "STS14.images.tsv": "c17677ae0fdd667330b8b41585666d2181d1f4b20013cfdd81f5d0f2811b9165",
    "STS14.tweet-news.tsv": "be2ee005c28f3c4359cef6d35323ef5ce32443a85a6bad21cdb30f320054db37",
    "STSB.dev.tsv": "fabfa37dc4a26d39c1d015d1f8c99adfefc224f06eb9117ca11a8d5c46f52d7d",
    "STSB.test.tsv": "a06144ec553c8f84e8bb90bca18d8167b5d998569c242b1cff28f30e48ae7710",
    "rt-polarity.neg": "c4ac36eaa8adc8ee31c31f69594bfbe68d83ef5b6db53f1f19b28c0be52f3999",
    "rt-polarity.pos": "34e5b0da2d491e46b700b00afe735aaae0962bcfe4f7f22b2d8077e714fa370f",
    "TREC_10.label": "86ad53c8fc9d397ab2f4be7c967d8efb470b260140557d3e57afad69d1b88b76",
    "train_5500.label": "8bd6e79493f43bbd22c364587366a1dced54e1e31259eaa92721a0f526031116",
}
