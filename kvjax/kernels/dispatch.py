"""Which implementation of an operation runs: XLA anywhere, a kernel on the platform it is written for."""

import dataclasses
import importlib
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType, ModuleType

import jax
from jax import lax
from jaxtyping import PyTree

from kvjax.types import Function

MACHINES = {"cuda": "an NVIDIA GPU", "cpu": "a CPU"}


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation's implementations.

    Args:
        name: for messages.
        anywhere: modules that run on every platform, by name; one is "xla".
        kernels: modules that are written for one platform, by name, with that platform ("cuda" or "cpu"); each has
            `refuses(*operands, **static) -> str | None` and is imported when it is considered, because it may need packages of the
            `gpu` extra.
        package: where the kernels are.
        by_name: further kernels, taken only when `impl` names them.
        reversed_as: for methods whose "xla" loops end where the data say, and cannot be reversed: the name of the implementation
            in `anywhere` whose derivative they get.
    """

    name: str
    anywhere: Mapping[str, ModuleType]
    kernels: Mapping[str, str]
    package: str
    by_name: Mapping[str, str] = MappingProxyType({})
    reversed_as: Mapping[str, str] = MappingProxyType({})

    def call(self, impl: str | None, method: str, *arrays: PyTree, **static: object) -> PyTree:
        """`method` of the implementation `impl`; for None of the best that takes the operands on each array's platform.

        A kernel is chosen only where JAX compiles for its platform; its derivative is that of the XLA implementation, or the one
        that `reversed_as` names.

        Raises:
            ValueError: an unknown name, or a kernel that cannot run; says why for each kernel.
        """
        if impl in self.anywhere:
            return getattr(self.anywhere[impl], method)(*arrays, **static)
        every = {**self.kernels, **self.by_name}
        if impl is not None and impl not in every:
            known = ", ".join((*self.anywhere, *every))
            raise ValueError(f"unknown impl {impl!r} of {self.name}; there are {known}")

        def refusal(name):
            return self._refusal(name, every[name], method, arrays, static)

        wanted = self.kernels if impl is None else (impl,)
        kernel = next((name for name in wanted if refusal(name) is None), None)
        if kernel is None and impl is not None:
            reasons = "".join(f"\n  {name}: {refusal(name) or 'would run'}" for name in every)
            raise ValueError(f"impl {impl!r} of {self.name} cannot run:{reasons}\n  {', '.join(self.anywhere)}: run anywhere")
        default = getattr(self.anywhere["xla"], method)
        derived = self.reversed_as.get(method)
        if kernel is None and derived is None:
            return default(*arrays, **static)
        kernels = () if kernel is None else ((every[kernel], getattr(self._load(kernel), method)),)
        which = dict(kernels=kernels, default=default, derived=getattr(self.anywhere[derived or "xla"], method))
        return _on_platform(*arrays, **which, static=tuple(static.items()))

    def _load(self, kernel: str) -> ModuleType:
        return importlib.import_module(f"{self.package}.{kernel}")

    def _refusal(self, kernel: str, platform: str, method: str, arrays: tuple, static: dict) -> str | None:
        """Why a kernel cannot run, or None."""
        if compiles_for() != platform:
            return f"needs {MACHINES[platform]}, JAX compiles for {compiles_for()} here"
        try:
            module = self._load(kernel)
        except ImportError as error:
            return f"needs the packages of the extra gpu (pip install -c constraints.txt -e '.[gpu]'): {error}"
        return module.refuses(*arrays, **static) if hasattr(module, method) else f"has no {method}"


def compiles_for() -> str:
    """The platform of this process, or of the abstract mesh that programs are traced under ("cuda" for any GPU)."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = jax.default_backend() if device is None else device.platform
    return "cuda" if platform == "gpu" else platform


@partial(jax.jit, static_argnames=("kernels", "default", "derived", "static"))
def _on_platform(*arrays: PyTree, kernels: tuple, default: Function, derived: Function, static: tuple) -> PyTree:
    """The kernel where the arrays are on a device of its platform, else `default`; the derivative of `derived`."""
    default, derived = partial(default, **dict(static)), partial(derived, **dict(static))
    by_platform = {platform: partial(kernel, **dict(static)) for platform, kernel in kernels}

    def choose(*arrays):
        return lax.platform_dependent(*arrays, default=default, **by_platform)

    run = jax.custom_jvp(choose if kernels else default)
    run.defjvp(lambda arrays, tangents: jax.jvp(derived, arrays, tangents))
    return run(*arrays)
