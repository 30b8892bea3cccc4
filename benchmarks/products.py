"""How fast are the matrix products of an encoder on this CPU: in PyTorch, ONNX Runtime and NumPy, on one thread?

Each has its own library for them (MKL, MLAS, OpenBLAS; PyTorch also oneDNN, as `diffaug.kernels.onednn` uses it), and
which instructions a library uses depends on the CPU. The shapes are those of all-MiniLM-L6-v2 for a batch of 1,024
tokens. All run in one process; a figure is that of the fastest of many repetitions, in seconds of CPU, so that other
work on the machine changes it little.

    python benchmarks/products.py --save
"""

# ruff: noqa: E402  (NumPy reads its number of threads when it is imported)

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np
import torch
import torch.nn.functional as F
from common import save

from diffaug.kernels import onednn

TOKENS = 1024
SHAPES = ((384, 384), (384, 1536), (1536, 384))


def session(weight: np.ndarray) -> Any:
    """The product with ``weight`` in ONNX Runtime."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    inputs, outputs = weight.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", outputs])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def gflops(sides: dict[str, Callable[[], Any]], operations: float, rounds: int) -> dict[str, float]:
    """Billions of operations per second of each side, at its best."""
    best = dict.fromkeys(sides, float("inf"))
    for side, work in sides.items():
        for _ in range(rounds):  # in a row, as in an encoder, where memory of the same sizes is used again
            start = time.thread_time()
            work()
            best[side] = min(best[side], time.thread_time() - start)
    return {side: round(operations / seconds / 1e9, 1) for side, seconds in best.items()}


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--save", action="store_true", help="keep the results in benchmarks/results/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    results: dict[str, Any] = {}
    for inputs, outputs in SHAPES:
        x = rng.standard_normal((TOKENS, inputs), dtype=np.float32)
        weight = rng.standard_normal((inputs, outputs), dtype=np.float32)
        states, linear = torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(weight.T))
        sides: dict[str, Callable[[], Any]] = {
            "PyTorch": partial(F.linear, states, linear),
            "PyTorch, oneDNN": partial(onednn.linear, states, linear),
            "ONNX Runtime": partial(session(weight).run, None, {"x": x}),
            "NumPy": partial(np.matmul, x, weight),
            "PyTorch, bf16": partial(F.linear, states.bfloat16(), linear.bfloat16()),
        }
        with torch.inference_mode():
            results[f"{inputs}x{outputs}"] = gflops(sides, 2 * TOKENS * inputs * outputs, options.rounds)
        print(f"{inputs:5d} x {outputs:5d}  {results[f'{inputs}x{outputs}']}")
    record = {
        "gflops": results,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "onednn_is_faster": onednn.onednn_is_faster(),
        "tokens": TOKENS,
    }
    if options.save:
        print("kept in", save("products", record, ("torch", "onnxruntime", "numpy")).name)


if __name__ == "__main__":
    main()
