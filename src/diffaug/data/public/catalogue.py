"""The public data sets: URLs, and checksums and row counts where they are known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """A file as it is published.

    Attributes:
        name: of the file, also in the folder of the data set.
        urls: where to download it, best first: ``https://``, or ``hf://`` for the Hugging Face hub.
        sha256: its checksum, if known.
        rows: the number of rows of a text file, if known.
        header: whether the first line holds column names.
        unpack: for an archive, a file that it must contain; empty for other files.
    """

    name: str
    urls: tuple[str, ...]
    sha256: str | None = None
    rows: int | None = None
    header: bool = False
    unpack: str = ""


@dataclass(frozen=True)
class PublicDataset:
    """A public data set.

    Attributes:
        name: on the command line.
        what: a description.
        licence: of the data.
        page: a web page about it.
        files: that it consists of.
    """

    name: str
    what: str
    licence: str
    page: str
    files: tuple[RemoteFile, ...]


def _file(
    *urls: str, sha256: str | None = None, rows: int | None = None, header: bool = False, unpack: str = ""
) -> RemoteFile:
    return RemoteFile(urls[0].rpartition("/")[2], urls, sha256, rows, header, unpack)


_HUB = "https://huggingface.co/datasets"
_SIMCSE = f"{_HUB}/princeton-nlp/datasets-for-simcse"
# A fixed revision, so that everybody gets the same files.
_SIMCSE_FILES = "hf://datasets/princeton-nlp/datasets-for-simcse@e145e8bb659b2aa2669f32ef79cb4cdef6c58fef"
_NLI_LICENCE = "SNLI (CC BY-SA 4.0) and MultiNLI (OANC)"
_STS_WIKI = "https://ixa2.si.ehu.eus/stswiki", "https://ixa2.si.ehu.es/stswiki"
_SENTEVAL = "https://dl.fbaipublicfiles.com/senteval/senteval_data"
_SIF = "https://raw.githubusercontent.com/PrincetonML/SIF/master/data"
_TREC = "https://cogcomp.seas.upenn.edu/Data/QA/QC"


def _semeval(year: int, path: str, contains: str) -> PublicDataset:
    files = _file(*(f"{wiki}/images/{path}/STS20{year}-en-test.zip" for wiki in _STS_WIKI), unpack=contains)
    what = f"SemEval STS 20{year}, test pairs with scores"
    return PublicDataset(f"sts{year}", what, "SemEval terms", _STS_WIKI[0], (files,))


def _dataset(name: str, what: str, licence: str, page: str, *files: RemoteFile) -> PublicDataset:
    return PublicDataset(name, what, licence, page, files)


DATASETS = (
    _dataset(
        "wiki1m",
        "SimCSE's Wikipedia sentences, one per line",
        "CC BY-SA 3.0",
        _SIMCSE,
        _file(
            f"{_SIMCSE_FILES}/wiki1m_for_simcse.txt",
            sha256="7b1825863a99aa76479b0456f7c210539dfaeeb69598b41fb4de4f524dd5a706",
            rows=1_000_000,
        ),
    ),
    _dataset(
        "nli",
        "SimCSE's NLI triplets: premise, entailment, contradiction",
        _NLI_LICENCE,
        _SIMCSE,
        _file(
            f"{_SIMCSE_FILES}/nli_for_simcse.csv",
            sha256="0747687ec3594fa449d2004fd3757a56c24bf5f7428976fb5b67176775a68d48",
            rows=275_601,
            header=True,
        ),
    ),
    _dataset(
        "senteval",
        "SentEval: all seven STS and seven transfer tasks",
        "those of its parts, mostly research use",
        _SIMCSE,
        # The hub announces a checksum, and an evaluation checks the number of rows of each file.
        _file(f"{_SIMCSE_FILES}/senteval.tar", unpack="STS/STSBenchmark/sts-test.csv"),
    ),
    _dataset(
        "stsb",
        "STS Benchmark: train, dev and test",
        "CC BY-SA 4.0",
        f"{_STS_WIKI[0]}/index.php/STSbenchmark",
        _file(
            *(f"{wiki}/images/4/48/Stsbenchmark.tar.gz" for wiki in _STS_WIKI),
            sha256="557a86abbd2b76ee6768d8b5103b659601a9d26b797898c7467812f303b21280",
            unpack="stsbenchmark/sts-test.csv",
        ),
    ),
    _semeval(12, "4/40", "test-gold/STS.input.MSRpar.txt"),
    _semeval(13, "2/2f", "test-gs/STS.input.FNWN.txt"),
    _semeval(14, "8/8c", "sts-en-test-gs-2014/STS.input.images.txt"),
    _semeval(15, "d/da", "test_evaluation_task2a/STS.input.belief.txt"),
    _semeval(16, "9/98", "sts2016-english-with-gs-v1.0/STS2016.input.plagiarism.txt"),
    _dataset(
        "polarity",
        "MR, CR, SUBJ and MPQA, before SentEval's tokenisation",
        "research use",
        "https://github.com/facebookresearch/SentEval",
        _file(f"{_SENTEVAL}/datasmall_NB_ACL12.zip", unpack="data/customerr/custrev.pos"),
    ),
    _dataset(
        "sst2",
        "Stanford Sentiment Treebank, two classes",
        "research use",
        "https://github.com/PrincetonML/SIF/tree/master/data",
        *(
            _file(f"{_SIF}/sentiment-{split}", sha256=sha256, rows=rows)
            for split, rows, sha256 in (
                ("train", 67_349, "10a92a297ec38e262386e5a2713b4bc70e5d18ced88b7f54bd171a26e5b34ab5"),
                ("dev", 872, "9a6c7403b71a9b762158387afe4431253ae10cdfb2319b5275289f3766f48291"),
                ("test", 1_821, "4fefd1cd67526cf87ebc7fafc3afc21cc7cfa6ae53b45e74f77f9456e3c62752"),
            )
        ),
    ),
    _dataset(
        "trec",
        "TREC questions of six classes, before SentEval removed their quotation marks",
        "research use",
        f"{_TREC}/",
        _file(
            f"{_TREC}/train_5500.label",
            sha256="9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
            rows=5_452,
        ),
        _file(
            f"{_TREC}/TREC_10.label",
            sha256="033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
            rows=500,
        ),
    ),
    _dataset(
        "mrpc",
        "Microsoft Research Paraphrase Corpus",
        "Microsoft research licence",
        "https://www.microsoft.com/en-us/download/details.aspx?id=52398",
        *(
            _file(f"{_SENTEVAL}/msr_paraphrase_{split}.txt", sha256=sha256, rows=rows, header=True)
            for split, rows, sha256 in (
                ("train", 4_076, "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89"),
                ("test", 1_725, "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784"),
            )
        ),
    ),
    _dataset(
        "snli",
        "Stanford NLI: labelled pairs, three labels",
        "CC BY-SA 4.0",
        "https://nlp.stanford.edu/projects/snli/",
        _file(
            "https://nlp.stanford.edu/projects/snli/snli_1.0.zip",
            sha256="afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
            unpack="snli_1.0/snli_1.0_train.jsonl",
        ),
    ),
    _dataset(
        "multinli",
        "MultiNLI: labelled pairs, three labels",
        "OANC and others",
        "https://cims.nyu.edu/~sbowman/multinli/",
        _file(
            "https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip",
            sha256="049f507b9e36b1fcb756cfd5aeb3b7a0cfcb84bf023793652987f7e7e0957822",
            unpack="multinli_1.0/multinli_1.0_train.jsonl",
        ),
    ),
    _dataset(
        "allnli",
        "SNLI and MultiNLI as triplets, as sentence-transformers publishes them",
        _NLI_LICENCE,
        f"{_HUB}/sentence-transformers/embedding-training-data",
        _file(
            "hf://datasets/sentence-transformers/embedding-training-data@main/AllNLI.jsonl.gz",
            sha256="f67394007a8a45f43bb559ae91511e87c2a431a08ea34261c4314c50a7a576d0",
        ),
    ),
    _dataset(
        "allnli-pairs",
        "SNLI and MultiNLI as labelled pairs, three labels, in one file",
        _NLI_LICENCE,
        "https://sbert.net/datasets/",
        _file("https://sbert.net/datasets/AllNLI.tsv.gz"),
    ),
)
