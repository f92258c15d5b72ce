"""A CUDA card that is not there: Triton kernels lowered and assembled for it, whole programs compiled by XLA:GPU.

Needs the `gpu` extra's packages but no GPU; `require()` skips where they are missing.
"""

import importlib.util
import os
import re
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.decode_loop import unchecked

PACKAGES = ("jax_cuda13_plugin", "jax_triton", "triton")
#: Most bytes of shared memory a program may have, by compute capability.
SHARED = {80: 166_912, 90: 232_448}
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 150000000000 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } runtime_version { major: 13 } device_description_str: "NVIDIA H200"
"""


def require(*packages: str) -> None:
    """Skip the module where a package is missing; to be called before anything imports Triton."""
    missing = [name for name in packages or PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs the gpu extra (no GPU): {', '.join(missing)} not installed", allow_module_level=True)


@dataclass(frozen=True)
class Assembled:
    """A kernel as ptxas reports it."""

    name: str
    registers: int
    spills: int
    shared: int

    def fits(self, capability: int) -> bool:
        """Nothing spilled, and no more registers and shared memory than the card gives a thread and a program."""
        return self.spills == 0 and self.registers <= 255 and self.shared <= SHARED[capability]


@contextmanager
def compute_capability(value: int):
    """jax-triton asks the driver for the card; here the answer is given."""
    from jax_triton import triton_lib

    asked = triton_lib.triton_kernel_call_lib
    answer = type("Library", (), {"__getattr__": lambda _, name: getattr(asked, name)})()
    answer.get_compute_capability = lambda device: value
    triton_lib.triton_kernel_call_lib = answer
    try:
        yield
    finally:
        triton_lib.triton_kernel_call_lib = asked


@contextmanager
def _recorded(found: list):
    """Every kernel that jax-triton compiles."""
    from jax_triton import triton_lib

    compile, before = triton_lib.compile_ttir_inplace, dict(triton_lib._COMPILED_KERNEL_CACHE)
    triton_lib._COMPILED_KERNEL_CACHE.clear()
    triton_lib.compile_ttir_inplace = lambda *args: found.append(compile(*args)) or found[-1]
    try:
        yield
    finally:
        triton_lib.compile_ttir_inplace = compile
        triton_lib._COMPILED_KERNEL_CACHE.update(before)


def assembled(f, *args, capability: int) -> list[Assembled]:
    """ptxas' report of every Triton kernel in f(*args)."""
    found = []
    with compute_capability(capability), _recorded(found):
        jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",))
    return [_assemble(kernel) for kernel in found]


def _assemble(kernel) -> Assembled:
    import triton

    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    target = re.search(r"\.target (sm_\w+)", kernel.binary)[1]
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(kernel.binary)
        command = [ptxas, "-v", f"--gpu-name={target}", ptx, "-o", Path(folder) / "kernel.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    number = lambda pattern: sum(int(x) for x in re.findall(pattern, said))  # noqa: E731
    spills = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    return Assembled(kernel.name, number(r"Used (\d+) registers"), spills, kernel.shared_mem_bytes)


def compiled(f, *args, capability: int = 90, options: dict | None = None, **static):
    """The jitted f compiled by XLA:GPU, with its `options`, for an H200 that is not there; `args` are arrays or their shapes."""
    sharding = jax.sharding.NamedSharding(_mesh(), jax.sharding.PartitionSpec())
    shape, mesh = partial(_shape, sharding=sharding), sharding.mesh.abstract_mesh
    with jax.sharding.use_abstract_mesh(mesh), compute_capability(capability), _callbacks_left_out(), unchecked():
        traced = f.trace(*jax.tree.map(shape, args), **static)
        lowered = traced.lower(lowering_platforms=("cuda",))
        _place(lowered, traced.jaxpr.in_avals)
        return lowered.compile(compiler_options=options)


@contextmanager
def _callbacks_left_out():
    """A client that only compiles takes no Python functions; the calls of them are in the module all the same."""
    from jax._src import compiler
    from jax._src.interpreters import mlir

    compile, backend = compiler.backend_compile_and_load, mlir.ModuleContext.get_backend
    compiler.backend_compile_and_load = lambda *args: compile(*args[:4], ())
    mlir.ModuleContext.get_backend = lambda context: None  # asked for by every callback, used on a TPU alone
    try:
        yield
    finally:
        compiler.backend_compile_and_load, mlir.ModuleContext.get_backend = compile, backend


def _place(lowered, avals) -> None:
    """Host memory for the arguments that live there: a device that is not there has no memories, so that shardings lose theirs."""
    from jax._src.lib.mlir import ir

    module, kept = lowered.compiler_ir("stablehlo"), sorted(lowered._lowering.compile_args["kept_var_idx"])
    with module.context:
        main = next(f for f in module.body.operations if f.attributes["sym_name"].value == "main")
        attributes = [{x.name: x.attr for x in (a[i] for i in range(len(a)))} for a in main.attributes["arg_attrs"]]
        for at, attribute in zip(kept, attributes, strict=True):
            if avals[at].memory_space == jax.memory.Space.Host:
                attribute["mhlo.memory_kind"] = ir.StringAttr.get("pinned_host")
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(x) for x in attributes])


def _shape(x, sharding):
    """The shape of an array, where it lives; what is none, as it is."""
    if not hasattr(x, "dtype"):
        return x
    if getattr(getattr(x, "sharding", None), "memory_kind", None) == "pinned_host":
        return jax.ShapeDtypeStruct(x.shape, x.dtype, _memory_space=jax.memory.Space.Host)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _mesh() -> jax.sharding.Mesh:
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    from jax.experimental import topologies
    from jax_plugins import xla_cuda13

    jax.devices()  # finds plugins, this one perhaps
    if "cuda" not in jax._src.xla_bridge._backend_factories:
        xla_cuda13.initialize()
    found = topologies.get_topology_desc("h200", "cuda", target_config=H200, topology="1x1x1")
    return jax.sharding.Mesh(np.array(found.devices), ("x",))
