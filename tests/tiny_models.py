"""The configurations of tiny models of every family, and how one is built at random from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Small in everything but with several layers and heads; 128 positions, as the embedded encoder has.
_SIZE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
_BERT = {**_SIZE, "max_position_embeddings": 128}
# RoBERTa's first two positions belong to the padding.
_ROBERTA = {
    **_SIZE,
    "max_position_embeddings": 130,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "type_vocab_size": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 128},
    "electra": {**_BERT, "embedding_size": 16},
    "albert": {**_BERT, "embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2},
    # Full attention in layers 0 and 3, a window of two tokens to each side in the others.
    "modernbert": {
        **_SIZE,
        "num_hidden_layers": 4,
        "max_position_embeddings": 128,
        "global_attn_every_n_layers": 3,
        "local_attention": 4,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "cls_token_id": 2,
        "eos_token_id": 3,
        "sep_token_id": 3,
    },
    "mpnet": _ROBERTA,
    "deberta": {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16},
}


def build_tiny(family: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A tiny random model, in evaluation mode."""
    import torch
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(sorted(FAMILIES).index(family))
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **FAMILIES[family])
    model = AutoModel.from_config(config).eval()
    # Fresh models have tiny weights and no biases, with which every token attends evenly to all others and a mistake
    # in positions, masks or prefixes hardly shows.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
            parameter.copy_(centre + 0.2 * torch.randn_like(parameter))
    # New prefixes, heads and classifiers take their initial scale from here, and must show in the same way.
    model.config.initializer_range = 0.3
    return model
