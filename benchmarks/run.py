"""All questions in one run: a line per target as a table and as JSON, and the table of docs/speed.md.

    python -m benchmarks.run --output FILE.json                     everything, about an hour
    python -m benchmarks.run --only inference --only "one row"      some questions
    python -m benchmarks.run --quick --repeats 2                    small cases, to see that it works
    python -m benchmarks.run --read FILE.json --write docs/speed.md      measures nothing, fills the page's table
    python -m benchmarks.run --only chunks --write docs/scale.md         the table of another page

With --read and --only, the questions asked anew replace their lines in what was read. Progress goes to standard error,
and what was measured before an interruption is kept.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from importlib import import_module
from pathlib import Path

from benchmarks import table
from benchmarks.machine import Machine, measure
from mlrh._files import replacing

QUESTIONS = {
    "linear fit": "fits:measure_linear",
    "linear fit at defaults": "fits:measure_defaults",
    "RBF fit": "fits:measure_rbf",
    "inference": "inference:measure",
    "growth": "growth:measure",
    "memory": "memory:measure",
    "one row": "one_row:measure",
    "start": "startup:measure",
    "choice of C": "cross_validation:measure",
    "elastic net": "elastic_net:measure",
    "boosted fit": "boosting:measure",
    "torch loss": "torch_loss:measure",
    "chunks": "chunks:measure",
    "dask": "dask:measure",
}
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
MEAN_TARGETS = {"linear fit": 0.4, "linear fit at defaults": 0.6}


@dataclass(frozen=True)
class Context:
    """What every question gets to know besides the number of turns."""

    machine: Machine
    quick: bool
    tell: Callable[[str], None]


def main(arguments=None) -> int:
    options = parse(arguments)
    record = json.loads(options.read.read_text()) if options.read else {"runs": [], "lines": []}
    asked = options.only or ([] if options.read else list(QUESTIONS))
    status = 0
    if asked:
        record, status = run(asked, record, options)
    summarise(record, options)
    return status


def parse(arguments):
    parser = argparse.ArgumentParser(
        "benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=QUESTIONS, metavar="QUESTION", help=", ".join(QUESTIONS))
    parser.add_argument("--repeats", type=int, default=5, help="turns of each call, at least (default: 5)")
    parser.add_argument("--blas-threads", type=int, default=1, help="threads of BLAS, for everyone (default: 1)")
    parser.add_argument("--quick", action="store_true", help="small cases; no figures to cite")
    parser.add_argument("--output", type=Path, help="file for the lines as JSON, rewritten after every line")
    parser.add_argument("--read", type=Path, help="file with the lines of an earlier run")
    parser.add_argument("--write", type=Path, help="page whose table between the two marks is replaced")
    options = parser.parse_args(arguments)
    if options.repeats < 1 or options.blas_threads < 1:
        parser.error("--repeats and --blas-threads must be at least 1.")
    if options.read and not options.read.is_file():
        parser.error(f"--read must name the JSON file of an earlier run; there is no {options.read}.")
    if options.write and not (options.write.is_file() and BEGIN in options.write.read_text()):
        parser.error(
            f"{options.write} must be a page with the marks {BEGIN} and {END}; add them where the table belongs."
        )
    return options


def run(asked, record, options):
    """The record with new lines for the questions asked, and an exit status: 0, 1 if one broke, 130 if interrupted."""
    limit_blas(options.blas_threads)
    context = Context(measure(options.blas_threads, quick=options.quick), options.quick, tell)
    tell(str(context.machine))
    record, own, status, begin = without(record, asked), described(asked, context, options), 0, time.perf_counter()
    record["runs"].append(own)
    try:
        for line in lines(asked, options.repeats, context):
            record["lines"].append(table.to_dict(line))
            status = max(status, int(line.ratio is None))
            own["seconds"] = round(time.perf_counter() - begin)
            save(record, options.output)
    except KeyboardInterrupt:
        tell("interrupted; what was measured is kept")
        status = 130
    return record, status


def without(record, asked):
    """The record without what it holds of the questions, and without runs that nothing is left of."""
    runs = [{**own, "questions": [q for q in own["questions"] if q not in asked]} for own in record["runs"]]
    kept = [line for line in record["lines"] if line["question"] not in asked]
    return {"runs": [own for own in runs if own["questions"]], "lines": kept}


def described(asked, context, options):
    """What JSON holds of a run besides its lines."""
    settings = {"repeats": options.repeats, "quick": options.quick, "machine": asdict(context.machine)}
    return {"date": date.today().isoformat(), "questions": list(asked), **settings}


def lines(asked, repeats, context):
    """Yields the lines of the questions; a question that breaks yields a line that says so, and the others go on."""
    for question in asked:
        tell(f"== {question}")
        yield from table.attempted(question, "all that is left of it", answer, question, repeats, context)


def answer(question, repeats, context):
    """Yields the lines of a question."""
    module, function = QUESTIONS[question].split(":")
    yield from getattr(import_module(f"benchmarks.{module}"), function)(repeats, context)


def limit_blas(n_threads):
    """Gives BLAS so many threads, here and in the processes that are started."""
    from threadpoolctl import threadpool_limits

    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(n_threads)
    threadpool_limits(n_threads, user_api="blas")


def save(record, path):
    """Write the record, in one step so that an interruption leaves the file whole."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as (file,):
        file.write(json.dumps(record, indent=1).encode() + b"\n")


def summarise(record, options):
    """Print the table, and fill the page's."""
    from rich.console import Console

    shown = with_means([table.from_dict(values) for values in record["lines"]])
    save(record, options.output)
    console = Console() if sys.stdout.isatty() else Console(width=240)
    table.show(shown, console)
    held = [line for line in shown if line.target is not None]
    console.print(f"{sum(bool(line.passes) for line in held)} of {len(held)} targets met")
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        with replacing(options.write) as (file,):
            file.write(filled(text, page(record, shown)).encode())


def with_means(shown):
    """The lines in the order of QUESTIONS, with the geometric means behind their questions."""
    result = []
    for question in QUESTIONS:
        own = [line for line in shown if line.question == question]
        mean = table.geometric_mean(own, question, target=MEAN_TARGETS[question]) if question in MEAN_TARGETS else None
        result += [*own, mean] if mean else own
    return result


def page(record, shown) -> str:
    """What stands between the marks: date and machine of every run that the lines come from, and the table."""
    return "\n\n".join([*map(heading, record["runs"]), table.markdown(shown)])


def heading(own) -> str:
    """A paragraph on a run."""
    size = "small cases only, no figures to cite; " if own["quick"] else ""
    turns = f"{size}medians of at least {own['repeats']} turns"
    return f"Measured {own['date']} ({', '.join(own['questions'])}; {turns}) on: {Machine(**own['machine'])}."


def filled(text, content) -> str:
    """The text with the content between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def tell(message):
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
