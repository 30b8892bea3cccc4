"""The papers of the methods, which model cards cite."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A method's name, its idea in one sentence, and its publication."""

    method: str
    idea: str
    key: str
    authors: str
    title: str
    venue: str
    year: int

    def bibtex(self) -> str:
        """The BibTeX entry."""
        return (
            f"@inproceedings{{{self.key},\n"
            f"  title     = {{{self.title}}},\n"
            f"  author    = {{{self.authors}}},\n"
            f"  booktitle = {{{self.venue}}},\n"
            f"  year      = {{{self.year}}}\n"
            "}"
        )


PAPERS = {
    "diffaug": Paper(
        "DiffAug",
        "Learned modules, two prefixes in the paper, give the encoder two views of a sentence. They are first trained "
        "to separate entailment from contradiction, then together with the encoder with a contrastive loss.",
        "wang-lu-2022-differentiable",
        "Wang, Tianduo and Lu, Wei",
        "Differentiable Data Augmentation for Contrastive Sentence Representation Learning",
        "Proceedings of EMNLP",
        2022,
    ),
    "simcse": Paper(
        "SimCSE",
        "A contrastive loss pulls together two encodings of a sentence with different dropout, or a premise and its "
        "entailed hypothesis.",
        "gao-etal-2021-simcse",
        "Gao, Tianyu and Yao, Xingcheng and Chen, Danqi",
        "{SimCSE}: Simple Contrastive Learning of Sentence Embeddings",
        "Proceedings of EMNLP",
        2021,
    ),
    "promptbert": Paper(
        "PromptBERT",
        "A sentence is inserted into a template and represented by the template's mask token; training subtracts the "
        "representation of the empty template.",
        "jiang-etal-2022-promptbert",
        "Jiang, Ting and Jiao, Jian and Huang, Shaohan and Zhang, Zihan and Wang, Deqing and Zhuang, Fuzhen and "
        "Wei, Furu and Huang, Haizhen and Deng, Denvy and Zhang, Qi",
        "{PromptBERT}: Improving {BERT} Sentence Embeddings with Prompts",
        "Proceedings of EMNLP",
        2022,
    ),
    "distil": Paper(
        "distillation",
        "A student learns the vectors that a teacher gives to unlabelled text.",
        "reimers-gurevych-2020-making",
        "Reimers, Nils and Gurevych, Iryna",
        "Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation",
        "Proceedings of EMNLP",
        2020,
    ),
    "diffcse": Paper(
        "DiffCSE",
        "In addition to a contrastive loss, a discriminator conditioned on the sentence's vector detects replaced "
        "tokens in an edited copy.",
        "chuang-etal-2022-diffcse",
        "Chuang, Yung-Sung and Dangovski, Rumen and Luo, Hongyin and Zhang, Yang and Chang, Shiyu and "
        "Solja{\\v{c}}i{\\'c}, Marin and Li, Shang-Wen and Yih, Wen-tau and Kim, Yoon and Glass, James",
        "{DiffCSE}: Difference-based Contrastive Learning for Sentence Embeddings",
        "Proceedings of NAACL",
        2022,
    ),
    "consert": Paper(
        "ConSERT",
        "A contrastive loss between two views of a sentence that are augmented in the embedding layer.",
        "yan-etal-2021-consert",
        "Yan, Yuanmeng and Li, Rumei and Wang, Sirui and Zhang, Fuzheng and Wu, Wei and Xu, Weiran",
        "{ConSERT}: A Contrastive Framework for Self-Supervised Sentence Representation Transfer",
        "Proceedings of ACL-IJCNLP",
        2021,
    ),
    "sbert": Paper(
        "SBERT",
        "A Siamese encoder learns to classify pairs of sentences from their mean-pooled vectors.",
        "reimers-gurevych-2019-sentence",
        "Reimers, Nils and Gurevych, Iryna",
        "Sentence-{BERT}: Sentence Embeddings using {Siamese} {BERT}-Networks",
        "Proceedings of EMNLP-IJCNLP",
        2019,
    ),
    "flow": Paper(
        "BERT-flow",
        "An invertible flow maps the vectors of a frozen encoder to a Gaussian.",
        "li-etal-2020-sentence",
        "Li, Bohan and Zhou, Hao and He, Junxian and Wang, Mingxuan and Yang, Yiming and Li, Lei",
        "On the Sentence Embeddings from Pre-trained Language Models",
        "Proceedings of EMNLP",
        2020,
    ),
}
