"""How long a new user needs from a clone to an adapted model: the commands of README, timed one by one.

    python benchmarks/first_use.py --model all-MiniLM-L6-v2 --data data/intents --save

Labels are `banking77.train_5.tsv`, text is the training sentences without labels. The clone is that of the checkout of
this script, in a temporary folder, and has an environment of its own. pip's cache is not used: packages are downloaded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

from common import save

CHECKOUT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    labels, model = (options.data / "banking77.train_5.tsv").resolve(), Path(options.model).resolve()
    seconds: dict[str, float] = {}
    environment = {**os.environ, "PIP_NO_CACHE_DIR": "1"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = folder / "raw.txt"
        lines = (options.data / "banking77.train.tsv").read_text("utf-8-sig").splitlines()
        text.write_text("\n".join(line.split("\t")[1] for line in lines) + "\n", "utf-8")
        clone, program = folder / "diffaug", ".venv/bin/diffaug"
        for name, command in (
            ("git clone", ["git", "clone", "--quiet", str(CHECKOUT), str(clone)]),
            ("make quickstart", ["make", "quickstart"]),
            ("diffaug data check", [program, "data", "check", str(labels)]),
            (
                "diffaug adapt",
                [program, "adapt", str(model), "--labels", str(labels), "--text", str(text), "--out", "adapted"],
            ),
            ("diffaug predict", [program, "predict", str(text), "--model", "adapted/model"]),
        ):
            begin = time.monotonic()
            cwd = clone if clone.exists() else folder
            subprocess.run(command, cwd=cwd, env=environment, check=True, stdout=subprocess.DEVNULL)
            seconds[name] = round(time.monotonic() - begin, 1)
            print(f"{name}: {seconds[name]} s", flush=True)
    results = {"model": model.name, "text": len(lines), "seconds": {**seconds, "all": round(sum(seconds.values()), 1)}}
    print(results)
    if options.save:
        save("first_use", results, ("diffaug", "torch", "transformers"))


if __name__ == "__main__":
    main()
