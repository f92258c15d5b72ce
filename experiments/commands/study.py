"""`kvjax study`: bytes, times and quality of systems that manage a cache in different ways, and request rates simulated of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.sweep_options import Budgets, Lengths, Prompts
from experiments.console import Dtype, JsonFile, ModelName, TextFile, err, out, progress, write_json
from experiments.full_cache import MB
from experiments.plan_words import counts, grid, numbers, parse_lengths, parts
from experiments.policies import Named
from experiments.rows import Found, Row, RowFile, read
from experiments.study import again, quality, show
from experiments.study.cell import NAMES, of_row
from experiments.study.cell import study as check
from experiments.study.rates import Load
from experiments.study.run import MODE, SEED, Plan, run
from experiments.tasks import needle
from experiments.tasks.text import Haystack, haystack
from models.language_model import LanguageModel
from models.numbers import MOST

#: Requests that decode together: their prompts are made before anything is measured.
MOST_AT_ONCE = 1024
POLICIES = "full,h2o,infinigen,infinigen:alpha=1e3,cap=0.5,infinigen:alpha=1e3,cap=0.25,kivi:bits=4,kivi"


def study(
    model: ModelName,
    out_file: Annotated[Path, typer.Option("--out", help="JSONL of cells; an unfinished one is resumed.")],
    policies: Annotated[str, typer.Option(help="Comma-separated NAME[:key=value,...].")] = POLICIES,
    budgets: Budgets = "0.5,0.25",
    lengths: Lengths = "1024",
    batches: Annotated[str, typer.Option(help="Comma-separated numbers of requests that decode together.")] = "1,4",
    prompts: Prompts = 20,
    new: Annotated[int, typer.Option(min=2, max=MOST, help="Tokens generated for each request.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Counted rounds of a cell; speeds are compared from 3 on.")] = 3,
    rates: Annotated[str, typer.Option(help="Comma-separated requests a second that are simulated.")] = "0.05,0.1,0.2,0.4",
    memory: Annotated[float, typer.Option(min=1, max=1e9, help="MB of the device for caches, in the simulation.")] = 200.0,
    answers: Annotated[
        str | None, typer.Option(help="Comma-separated result files of kvjax sweep: what they answer is not asked again.")
    ] = None,
    times_only: Annotated[
        bool, typer.Option("--times-only", help="Bytes and times anew, in place of those that --out has; no quality.")
    ] = False,
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Several systems under one protocol: bytes, times and needles found; no ratio is shown without its quality."""
    import models

    sizes, cells = counts("--batches", batches, MOST_AT_ONCE), grid(policies, budgets)
    plan = Plan(policies=cells, lengths=parse_lengths(lengths), batches=sizes, new=new, rounds=rounds)
    load, source = Load(rates=numbers("--rates", rates), memory=int(memory * MB)), haystack(text)
    with err.status(f"loading {model}"):
        lm = models.load(model, dtype=dtype)
    others = [row for path in parts("--answers", answers) for row in read(path)] if answers else []
    answered = 0 if times_only else _answer(lm, plan, source, quality.beside(out_file), others, prompts=prompts)
    measured = _measure(lm, plan, source, again.beside(out_file) if times_only else out_file, joins=out_file)
    if times_only:
        again.replace(out_file)
    rows, own = read(out_file, check), quality.beside(out_file)
    _show(rows, quality.of_rows([*(read(own) if own.is_file() else ()), *others], rows[0]), load, json_file)
    out.print(f"{measured} cells and {answered} answers measured, in {out_file} and beside it", markup=False)


def _answer(lm: LanguageModel, plan: Plan, source: Haystack, path: Path, others: Sequence[Row], *, prompts: int) -> int:
    """The sweep of needles that neither `others` nor `path` answer; it has the full cache among its cells."""
    from experiments import sweep
    from experiments.tasks.answering import Answering

    shared = sweep.identity(lm, source)
    there, wanted = quality.of_rows(others, shared), set(range(prompts))

    def known(named: Named) -> bool:
        return all(wanted <= there.get((named.policy.in_full(), named.budget, length), {}).keys() for length in plan.lengths)

    cells = tuple(named for named in plan.policies if not known(named))
    if not cells:
        return 0
    asked = sweep.Plan(((Answering(needle), MODE),), plan.lengths, cells, prompts, (SEED,))
    with RowFile(path, shared) as rows, progress() as bar:
        line = bar.add_task("needles", total=sum(len(asked.missing(rows, prompt)) for prompt in asked.prompt_keys()))
        return sweep.run(lm, asked, source, rows, done=lambda count: bar.advance(line, count))


def _measure(lm: LanguageModel, plan: Plan, source: Haystack, path: Path, joins: Path) -> int:
    """The cells that `path` lacks, while no other benchmark runs; `joins` is where its rows go in the end."""
    from experiments import sweep
    from experiments.bench import alone
    from experiments.tasks.chat import encode_plain

    shared, ids = sweep.identity(lm, source), encode_plain(lm, source.text)
    Found(joins, shared, check, NAMES)  # rows of another model are refused before anything is measured
    with alone(), RowFile(path, shared, check, NAMES) as rows, progress() as bar:
        line = bar.add_task("cells", total=len(plan.missing(rows)))
        return run(lm, plan, ids, rows, shared | sweep.origin(source), done=lambda count: bar.advance(line, count))


def _show(rows: Sequence[Row], found: quality.Quality, load: Load, json_file: Path | None) -> None:
    """The tables, and the rows of the schema as JSON."""
    cells = list(map(of_row, rows))
    out.print("\n".join(show.page(cells, found, load)), markup=False)
    write_json(json_file, {"study": show.payload(cells, found, load)})
