"""`kvjax lm-eval`: any task of EleutherAI's lm-eval, its contexts compressed by a policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from experiments.commands.generate import BudgetText, PolicySpec
from experiments.console import Dtype, JsonFile, ModelName, err, out, write_json
from experiments.full_cache import MB
from experiments.lm_eval_table import markdown
from experiments.policies import policy_of
from experiments.provenance import commit, machine, versions


def lm_eval(
    model: ModelName,
    tasks: Annotated[str, typer.Option(help="Comma-separated tasks of lm-eval, such as arc_easy,gsm8k.")],
    policy: PolicySpec = "full",
    budget: BudgetText = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Documents of each task; default: all.")] = None,
    shots: Annotated[int | None, typer.Option("--num-fewshot", min=0, help="Examples before a question.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put questions through the chat template.")] = False,
    folder: Annotated[Path | None, typer.Option("--include-path", help="Folder with task files of your own.")] = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Evaluate a policy on tasks of lm-eval; prints its table, and the bytes behind it."""
    named = policy_of(policy, budget)
    harness = _harness()
    manager = harness.tasks.TaskManager(include_path=None if folder is None else str(folder))
    names = _known(tasks, manager)
    import models
    from experiments.lm_eval import CompressedLM

    with err.status(f"loading {model}"):
        lm = models.load(model, dtype=dtype)
    adapter = CompressedLM(lm, named.policy)
    with _commit_without_git(harness):
        found = harness.simple_evaluate(
            adapter, tasks=names, limit=limit, num_fewshot=shots, apply_chat_template=chat, task_manager=manager, log_samples=False
        )
    out.print(markdown(found), markup=False)
    facts = {"policy": named.name, "policy_repr": named.policy.in_full(), "budget": named.budget, **_means(adapter)}
    out.print(_line(facts), markup=False)
    origin = {"model": lm.name, "dtype": dtype, "versions": versions(), "commit": commit(), "machine": machine()}
    write_json(json_file, {**facts, **origin, "results": _plain(found["results"]), "documents": _plain(found["n-samples"])})


def _harness() -> Any:
    """The lm-eval package.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import lm_eval
        import lm_eval.evaluator
        import lm_eval.tasks
    except ImportError as error:
        raise ImportError(f"this command needs lm-eval ({error}): pip install -c constraints.txt -e '.[lm-eval]'") from error
    return lm_eval


@contextmanager
def _commit_without_git(harness: Any) -> Iterator[None]:
    """lm-eval asks git for the commit of the working folder, and git complains on the terminal where that is no checkout."""
    asked = harness.evaluator.get_git_commit_hash
    harness.evaluator.get_git_commit_hash = commit
    try:
        yield
    finally:
        harness.evaluator.get_git_commit_hash = asked


def _known(names: str, manager: Any) -> list[str]:
    """The tasks named.

    Raises:
        ValueError: none, or one that lm-eval does not have.
    """
    asked = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in asked if not manager.match_tasks([name])]
    if unknown or not asked:
        raise ValueError(f"--tasks: lm-eval has no {', '.join(unknown) or 'task without a name'}; `lm-eval ls tasks` lists them")
    return asked


def _means(adapter: Any) -> dict[str, Any]:
    """Contexts compressed, and the mean bytes of one."""
    counts = adapter.nbytes["full"]
    return {"contexts": len(counts), **{f"{name}_bytes": fmean(found) if found else 0 for name, found in adapter.nbytes.items()}}


def _line(facts: dict[str, Any]) -> str:
    used, allocated, full = (f"{facts[f'{name}_bytes'] / MB:.2f} MB" for name in ("used", "allocated", "full"))
    return (
        f"{facts['policy']} at {facts['budget']}: {facts['contexts']} contexts, a mean of {used} kept of {full}; "
        f"{allocated} allocated, room for answers and rounding included"
    )


def _plain(value: Any) -> Any:
    """What JSON can hold of lm-eval's results: an unknown standard error is null, whatever else is not plain its name."""
    if isinstance(value, dict):
        return {str(key): _plain(x) for key, x in value.items()}
    if isinstance(value, float) and value != value:
        return None
    return value if isinstance(value, str | int | float | None) else str(value)
