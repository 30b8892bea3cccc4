"""Prints pip constraints that turn every lower bound of pyproject.toml into that very version, for `make test-min`.

torch stays at the version of constraints.txt: of older ones the index may have builds with gigabytes of CUDA only.
`TORCH=2.6.0 make test-min` tests another one.
"""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
REQUIREMENT = re.compile(r'"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)"')

# What builds the package stands in front of [project], in an environment of its own.
project = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project]")[2]
bounds = dict(REQUIREMENT.findall(project))
pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").split() if "==" in line)
bounds["torch"] = os.environ.get("TORCH") or pins["torch"]
for name, version in sorted(bounds.items()):
    print(f"{name}=={version}")
