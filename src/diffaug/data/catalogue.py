"""The public data sets: addresses, checksums and row counts, where they are known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """A file as it is published.

    Attributes:
        name: its name, also in the source's folder.
        urls: its addresses, best first.
        sha256: its checksum, if known.
        rows: its rows, if known and it is text.
        header: whether a line before them names the columns.
        unpack: for an archive, a file that must be there once it is unpacked; empty for a file that stays as it is.
    """

    name: str
    urls: tuple[str, ...]
    sha256: str | None = None
    rows: int | None = None
    header: bool = False
    unpack: str = ""


@dataclass(frozen=True)
class Source:
    """A data set.

    Attributes:
        name: what it is called here.
        what: what it is, for people.
        licence: under which terms it is published.
        page: where to look for it by hand.
        files: what it is made of.
    """

    name: str
    what: str
    licence: str
    page: str
    files: tuple[RemoteFile, ...]


_HUB = "https://huggingface.co/datasets"
_SIMCSE = f"{_HUB}/princeton-nlp/datasets-for-simcse"
# A fixed revision: the file that is fetched today is the one that was fetched yesterday.
_SIMCSE_FILES = f"{_SIMCSE}/resolve/e145e8bb659b2aa2669f32ef79cb4cdef6c58fef"
_STS_WIKI = "ixa2.si.ehu.eus/stswiki", "ixa2.si.ehu.es/stswiki"
_SENTEVAL = "https://dl.fbaipublicfiles.com/senteval/senteval_data"
_SIF = "https://raw.githubusercontent.com/PrincetonML/SIF/master/data"
_TREC = "https://cogcomp.seas.upenn.edu/Data/QA/QC"


def _semeval(year: int, path: str, holds: str) -> Source:
    name = f"STS20{year}-en-test.zip"
    return Source(
        f"sts{year}",
        f"SemEval STS 20{year}, test pairs with scores",
        "SemEval terms",
        f"http://{_STS_WIKI[0]}",
        (RemoteFile(name, tuple(f"http://{wiki}/images/{path}/{name}" for wiki in _STS_WIKI), unpack=holds),),
    )


SOURCES = (
    Source(
        "wiki1m",
        "SimCSE's Wikipedia sentences, one a line",
        "CC BY-SA 3.0",
        _SIMCSE,
        (
            RemoteFile(
                "wiki1m_for_simcse.txt",
                (f"{_SIMCSE_FILES}/wiki1m_for_simcse.txt",),
                sha256="7b1825863a99aa76479b0456f7c210539dfaeeb69598b41fb4de4f524dd5a706",
                rows=1_000_000,
            ),
        ),
    ),
    Source(
        "nli",
        "SimCSE's NLI triplets: premise, entailment, contradiction",
        "SNLI (CC BY-SA 4.0) and MultiNLI (OANC)",
        _SIMCSE,
        (
            RemoteFile(
                "nli_for_simcse.csv",
                (f"{_SIMCSE_FILES}/nli_for_simcse.csv",),
                sha256="0747687ec3594fa449d2004fd3757a56c24bf5f7428976fb5b67176775a68d48",
                rows=275_601,
                header=True,
            ),
        ),
    ),
    Source(
        "senteval",
        "SentEval: all seven STS and seven transfer tasks",
        "those of its parts, mostly research use",
        _SIMCSE,
        # No checksum known; the hub announces one, and every file's rows are checked before it is scored.
        (RemoteFile("senteval.tar", (f"{_SIMCSE_FILES}/senteval.tar",), unpack="STS/STSBenchmark/sts-test.csv"),),
    ),
    Source(
        "stsb",
        "STS Benchmark: train, dev and test",
        "CC BY-SA 4.0",
        f"http://{_STS_WIKI[0]}/index.php/STSbenchmark",
        (
            RemoteFile(
                "Stsbenchmark.tar.gz",
                tuple(f"http://{wiki}/images/4/48/Stsbenchmark.tar.gz" for wiki in _STS_WIKI),
                unpack="stsbenchmark/sts-test.csv",
            ),
        ),
    ),
    _semeval(12, "4/40", "test-gold/STS.input.MSRpar.txt"),
    _semeval(13, "2/2f", "test-gs/STS.input.FNWN.txt"),
    _semeval(14, "8/8c", "sts-en-test-gs-2014/STS.input.images.txt"),
    _semeval(15, "d/da", "test_evaluation_task2a/STS.input.belief.txt"),
    _semeval(16, "9/98", "sts2016-english-with-gs-v1.0/STS2016.input.plagiarism.txt"),
    Source(
        "polarity",
        "MR, CR, SUBJ and MPQA, before SentEval's tokenisation",
        "research use",
        "https://github.com/facebookresearch/SentEval",
        (
            RemoteFile(
                "datasmall_NB_ACL12.zip",
                (f"{_SENTEVAL}/datasmall_NB_ACL12.zip",),
                unpack="data/customerr/custrev.pos",
            ),
        ),
    ),
    Source(
        "sst2",
        "Stanford Sentiment Treebank, two classes",
        "research use",
        "https://github.com/PrincetonML/SIF/tree/master/data",
        tuple(
            RemoteFile(f"sentiment-{split}", (f"{_SIF}/sentiment-{split}",), sha256=checksum, rows=rows)
            for split, rows, checksum in (
                ("train", 67_349, "10a92a297ec38e262386e5a2713b4bc70e5d18ced88b7f54bd171a26e5b34ab5"),
                ("dev", 872, "9a6c7403b71a9b762158387afe4431253ae10cdfb2319b5275289f3766f48291"),
                ("test", 1_821, "4fefd1cd67526cf87ebc7fafc3afc21cc7cfa6ae53b45e74f77f9456e3c62752"),
            )
        ),
    ),
    Source(
        "trec",
        "TREC questions of six classes, before SentEval took their quotation marks out",
        "research use",
        f"{_TREC}/",
        (
            RemoteFile("train_5500.label", (f"{_TREC}/train_5500.label",), rows=5_452),
            RemoteFile("TREC_10.label", (f"{_TREC}/TREC_10.label",), rows=500),
        ),
    ),
    Source(
        "mrpc",
        "Microsoft Research Paraphrase Corpus",
        "Microsoft research licence",
        "https://www.microsoft.com/en-us/download/details.aspx?id=52398",
        tuple(
            RemoteFile(name, (f"{_SENTEVAL}/{name}",), sha256=checksum, rows=rows, header=True)
            for name, rows, checksum in (
                ("msr_paraphrase_train.txt", 4_076, "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89"),
                ("msr_paraphrase_test.txt", 1_725, "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784"),
            )
        ),
    ),
    Source(
        "snli",
        "Stanford NLI: labelled pairs, three labels",
        "CC BY-SA 4.0",
        "https://nlp.stanford.edu/projects/snli/",
        (
            RemoteFile(
                "snli_1.0.zip",
                ("https://nlp.stanford.edu/projects/snli/snli_1.0.zip",),
                sha256="afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
                unpack="snli_1.0/snli_1.0_train.jsonl",
            ),
        ),
    ),
    Source(
        "multinli",
        "MultiNLI: labelled pairs, three labels",
        "OANC and others",
        "https://cims.nyu.edu/~sbowman/multinli/",
        (
            RemoteFile(
                "multinli_1.0.zip",
                ("https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip",),
                sha256="049f507b9e36b1fcb756cfd5aeb3b7a0cfcb84bf023793652987f7e7e0957822",
                unpack="multinli_1.0/multinli_1.0_train.jsonl",
            ),
        ),
    ),
    Source(
        "allnli",
        "SNLI and MultiNLI as triplets, as sentence-transformers publishes them",
        "SNLI (CC BY-SA 4.0) and MultiNLI (OANC)",
        f"{_HUB}/sentence-transformers/embedding-training-data",
        (
            RemoteFile(
                "AllNLI.jsonl.gz",
                (f"{_HUB}/sentence-transformers/embedding-training-data/resolve/main/AllNLI.jsonl.gz",),
                sha256="f67394007a8a45f43bb559ae91511e87c2a431a08ea34261c4314c50a7a576d0",
            ),
        ),
    ),
    Source(
        "allnli-pairs",
        "SNLI and MultiNLI as labelled pairs, three labels, in one file",
        "SNLI (CC BY-SA 4.0) and MultiNLI (OANC)",
        "https://sbert.net/datasets/",
        (RemoteFile("AllNLI.tsv.gz", ("https://sbert.net/datasets/AllNLI.tsv.gz",)),),
    ),
)
