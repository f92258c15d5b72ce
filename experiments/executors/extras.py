"""Packages that an executor needs and not everybody has."""

import importlib


def require(executor: str, module: str, package: str) -> None:
    """See that what an executor needs can be imported.

    Args:
        executor: as `--executor` and the extra name it.   module: what is imported.   package: what it is called.

    Raises:
        ImportError: it cannot; says how to have it.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        advice = f"pip install -c constraints.txt -e '.[{executor}]', or take --executor local"
        raise ImportError(f"--executor {executor} needs {package}: {advice}") from error
