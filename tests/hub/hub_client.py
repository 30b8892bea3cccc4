"""What tests of the hub do as its client, in a process of its own: the library reads its settings when it is imported.

Runs `python hub_client.py MODEL SENTENCES.json OUT.json`, with HF_ENDPOINT and the like set by the test.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError

model, sentences_file, out = sys.argv[1:]
sentences = json.loads(Path(sentences_file).read_text("utf-8"))
owner, reader = os.environ.pop("TOKEN_OF_OWNER"), os.environ.pop("TOKEN_OF_READER")
found: dict[str, Any] = {}


def attempt(name: str, action: Any) -> None:
    """Keep what an action returns, or the text of its error: a `DiffaugError`, or the test fails."""
    try:
        found[name] = action()
    except DiffaugError as error:
        found[name] = f"error: {error}"


def vectors(name: str, revision: str | None = None) -> list[list[float]]:
    return Embedder.from_pretrained(name, revision=revision, device="cpu").encode(sentences).tolist()


embedder = Embedder.from_pretrained(model, device="cpu")
found["here"] = embedder.encode(sentences).tolist()

# Refused, before and after the repository is there.
attempt("no token", lambda: embedder.push_to_hub("owner/model"))
attempt("wrong token", lambda: embedder.push_to_hub("owner/model", token="hf_nonsense"))
attempt("no owner", lambda: embedder.push_to_hub("model", token=owner))
attempt("bad name", lambda: embedder.push_to_hub("owner/a b!", token=owner))
attempt("not there yet", lambda: vectors("owner/model"))

# Pushed, and again as another model, to a branch.
attempt("first", lambda: embedder.push_to_hub("owner/model", token=owner, license="mit", private=False))
other = Embedder.from_pretrained(model, device="cpu")
for parameter in other.encoder.parameters():
    parameter.data += 0.01
found["other here"] = other.encode(sentences).tolist()
attempt("branch", lambda: other.push_to_hub("owner/model", token=owner, branch="warmer", message="A second try"))
attempt("branch again", lambda: other.push_to_hub("owner/model", token=owner, branch="warmer", card="# Mine\n"))
attempt("private", lambda: embedder.push_to_hub("owner/secret", token=owner, private=True))
attempt("no right", lambda: embedder.push_to_hub("owner/model", token=reader))
constants.HF_HUB_DISABLE_XET = False  # the other way of uploading refuses in the same words
attempt("no right, xet", lambda: embedder.push_to_hub("owner/model", token=reader))
constants.HF_HUB_DISABLE_XET = True

# Loaded by name.
attempt("main", lambda: vectors("owner/model"))
attempt("warmer", lambda: vectors("owner/model", "warmer"))
attempt("commit", lambda: vectors("owner/model", found["first"].rpartition("/")[2]))
attempt("no such revision", lambda: vectors("owner/model", "colder"))
attempt("private, no token", lambda: vectors("owner/secret"))
os.environ["HF_TOKEN"] = owner
attempt("private, token", lambda: vectors("owner/secret"))

constants.ENDPOINT = "http://127.0.0.1:9"  # nobody listens there
attempt("no network", lambda: embedder.push_to_hub("owner/model", token=owner))

Path(out).write_text(json.dumps(found), "utf-8")
