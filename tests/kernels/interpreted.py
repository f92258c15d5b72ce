"""Triton kernels run through the library's own launches: on the GPU there is, or else by Triton's interpreter in a process apart.

`python -m tests.kernels.interpreted FILE` is that process: it puts `triton_call` below, which interprets a kernel over NumPy
arrays, in the place of jax-triton's, and runs the calls in FILE. The interpreter of Triton 3.6 is mended in three places: NumPy 2.5
no longer takes arrays of one element for loop bounds, its `dot` multiplies the bits of bfloat16 numbers, and it cuts float32
numbers off to bfloat16 where cards round to the nearest.
"""

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import jax
import numpy as np


def interpreted(calls: list[tuple]) -> list:
    """Results of (module, function, operands, keywords) in order; arrays as NumPy."""
    if jax.default_backend() == "gpu":
        return list(map(_run, calls))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "calls"
        file.write_bytes(pickle.dumps(calls))
        setting = os.environ | {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"}
        run = subprocess.run([sys.executable, "-m", __name__, file], env=setting, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr[-4000:]
        return pickle.loads(file.read_bytes())


def _run(call: tuple):
    module, name, operands, how = call
    found = getattr(importlib.import_module(module), name)(*jax.tree.map(jax.numpy.asarray, operands), **how)
    return jax.tree.map(np.asarray, found)


class Tensor:
    """A NumPy array with what the interpreter asks of a torch tensor."""

    def __init__(self, array: np.ndarray):
        self.array, self.dtype = array, str(array.dtype)

    data_ptr = lambda self: self.array.ctypes.data  # noqa: E731
    untyped_storage = cpu = lambda self: self
    storage_offset = size = stride = lambda self: None
    new_empty = lambda self, *_, **__: Tensor(np.empty(0, self.array.dtype))  # noqa: E731
    copy_ = lambda self, other: None  # noqa: E731

    def set_(self, storage, *_):
        self.array = storage.array


def triton_call(*args, kernel, out_shape, grid, num_warps=4, num_stages=3, input_output_aliases=None, **constants):
    """jax_triton.triton_call on the CPU. Outputs that are not an operand's memory start as NaN, or the largest integers."""
    import jax
    import jax.numpy as jnp

    dirty = lambda x: np.full(x.shape, np.nan if jnp.issubdtype(x.dtype, jnp.floating) else np.iinfo(x.dtype).max, x.dtype)  # noqa: E731
    outs, shape = jax.tree.flatten(jax.tree.map(dirty, out_shape))
    for operand, out in (input_output_aliases or {}).items():
        outs[out][...] = args[operand]
    tensors = [Tensor(np.array(x)) for x in args] + [Tensor(x) for x in outs]
    kernel[grid](*tensors, **constants)
    return jax.tree.unflatten(shape, map(jnp.asarray, outs))


def _mend() -> None:
    import jax.numpy as jnp
    import triton.language as tl
    from triton.runtime import interpreter as it

    patch, dot, cast = it._patch_lang_tensor, it.InterpreterBuilder.create_dot, it.InterpreterBuilder.cast_impl

    def patch_index(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def wide(x):
        bits = lambda: (x.data.astype(np.uint32) << 16).view(np.float32)  # noqa: E731
        return it.TensorHandle(bits(), tl.float32) if x.dtype.scalar == tl.bfloat16 else x

    def rounded(self, src, dst_type):
        if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, src, dst_type)
        return it.TensorHandle(src.data.astype(jnp.bfloat16).view(np.uint16), tl.bfloat16)

    it._patch_lang_tensor = patch_index
    it.InterpreterBuilder.cast_impl = rounded
    it.InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(self, wide(a), wide(b), *rest)


def _main(file: Path) -> None:
    _mend()
    sys.modules["jax_triton"] = types.SimpleNamespace(triton_call=triton_call)
    with jax.disable_jit():
        results = list(map(_run, pickle.loads(file.read_bytes())))
    file.write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
