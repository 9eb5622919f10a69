"""Change the code in many small ways, one at a time, and report which changes no test notices.

Usage: mutants.py [--seed N] [--number N] [--tests PATH]… [--jobs N] [--accepted] [--record]
PACKAGE…

A random sample of the mutations of the packages (folders of the checkout) is tried in copies of the
checkout: for each, the unit tests that call the changed function run. Where it is outside of
functions, or in one that only runs at import, those run that call any function of its file. What
calls what is recorded on the first run, and again with `--record`, which is needed after tests were
renamed: one that does not exist counts as a failed one. With `--tests`, survivors are tried again
with those of these tests that call the changed function in their own process, which may start API
servers.

`.ci/accepted-mutants` lists mutations that no test can or should notice, each with a reason: they
are left out of the sample. `--accepted` tries those instead, and fails for each that is noticed.
Exit status 1 for survivors and for lines of the list that no longer match a mutation.
"""

import argparse
import concurrent.futures
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Queue

from tools.ci.mutations import Mutation, mutations_of, read_accepted, stale_names

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED = ROOT / ".ci" / "accepted-mutants"
RECORDS = ROOT / "out" / "mutants"
UNIT_TESTS = ["tests/unit"]
KILLED_BY_UNIT = "killed by unit tests"
KILLED = "killed by other tests"
SURVIVED = "SURVIVED"
# The exit statuses of pytest when all tests passed, and when no test was selected.
_UNNOTICED = (0, 5)
# Most tests end within a second. A mutation that slows them down much has made a loop endless.
_UNIT_TEST_SECONDS = 180
_OTHER_TEST_SECONDS = 900
_MAX_TESTS = 600
# The folders of unit tests that check pages and the repository.
_NO_CODE = ("docs", "project")


def read_mutations(packages: Iterable[str]) -> Iterator[Mutation]:
    """Yield all mutations of the Python files below some folders."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from mutations_of(str(path.relative_to(ROOT)), path.read_bytes())


def read_calls(packages: list[str], tests: list[str], *, record: bool) -> dict[str, list[str]]:
    """Return the tests that call each function, by the file and name of the function.

    Runs the tests if no record of them exists, or with `record`.
    """
    names = [*packages, *(tests if tests != UNIT_TESTS else ())]
    folder = RECORDS / "-".join(name.replace("/", ".") for name in names)
    if record:
        shutil.rmtree(folder, ignore_errors=True)
    if not folder.is_dir():
        variables = {"CAPHV_RECORDED_FOLDERS": " ".join(packages), "CAPHV_RECORDS": str(folder)}
        # Tracing slows tests down, so the time limit of each is off.
        options = ["-p", "callrecorder", "--numprocesses=2", "--dist=worksteal", "--timeout=0"]
        options += [f"--ignore=tests/unit/{name}" for name in _NO_CODE]
        _pytest(ROOT, [*tests, *options], 3600, PYTHONPATH=f"{ROOT}/tools/ci", **variables)

    calls: dict[str, list[str]] = {}
    for file in sorted(folder.glob("*.json")):
        for place, tests in json.loads(file.read_text(encoding="utf-8")).items():
            calls.setdefault(place, []).extend(tests)
    return calls


def tests_of(mutation: Mutation, calls: dict[str, list[str]]) -> list[str]:
    """Return the tests that call the changed function. Tests of its own package come first."""
    tests: list[str] = []
    if mutation.in_function:
        tests = calls.get(f"{mutation.path}:{mutation.function}", [])
    if not tests:
        # What runs when a module is imported, such as its statements and what makes decorators of
        # options, may be noticed by each of its tests.
        tests = [
            test
            for place, names in calls.items()
            if place.startswith(f"{mutation.path}:")
            for test in names
        ]

    # The likeliest to fail come first, since the run ends with the first failure.
    package = f"tests/unit/{Path(mutation.path).parent}/"
    unique = dict.fromkeys(tests)
    ordered = sorted(unique, key=lambda test: (not test.startswith(package), "[" in test))
    return ordered[:_MAX_TESTS]


def _pytest(folder: Path, arguments: list[str], seconds: float, **variables: str) -> int:
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    # The recording takes minutes, so its progress is shown.
    output = None if "CAPHV_RECORDS" in variables else subprocess.DEVNULL

    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            timeout=seconds,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        # An endless loop counts as noticed. pytest itself has no negative status.
        return -1


def try_mutation(folder: Path, mutation: Mutation, tests: list[str], others: list[str]) -> str:
    """Run tests on a copy of the checkout with one mutation; return the outcome."""
    file = folder / mutation.path
    source = file.read_bytes()
    if source[mutation.begin : mutation.end] != mutation.before.encode():
        raise SystemExit(f"{mutation.path} was changed meanwhile: start again")

    file.write_bytes(mutation.apply(source))
    try:
        if tests and _pytest(folder, ["-x", *tests], _UNIT_TEST_SECONDS) not in _UNNOTICED:
            return KILLED_BY_UNIT
        if others and _pytest(folder, ["-x", *others], _OTHER_TEST_SECONDS) not in _UNNOTICED:
            return KILLED
        return SURVIVED
    finally:
        file.write_bytes(source)


def _copies(folder: Path, number: int) -> Iterator[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    names = [name for name in output.split("\0") if name]

    for copy in (folder / f"copy-{index}" / ROOT.name for index in range(number)):
        for name in names:
            # Git also lists files that were deleted and not yet staged.
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        (copy / ".venv").symlink_to(ROOT / ".venv")
        yield copy


def draw(
    mutations: list[Mutation], packages: list[str], number: int, chance: random.Random
) -> list[Mutation]:
    """Draw the same number of mutations from each package, large or small."""
    sample = []
    for index, package in enumerate(packages):
        candidates = [
            mutation for mutation in mutations if Path(package) in Path(mutation.path).parents
        ]
        # Rounded bounds divide the number without a remainder.
        begin = number * index // len(packages)
        end = number * (index + 1) // len(packages)
        sample += chance.sample(candidates, min(end - begin, len(candidates)))
    return sample


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("packages", nargs="+", metavar="PACKAGE")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--number", type=int, default=50)
    parser.add_argument("--tests", action="append", default=[], metavar="PATH")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--accepted", action="store_true")
    parser.add_argument("--record", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Try the mutations and print their outcomes; return the exit status."""
    options = _parse(arguments)

    accepted = read_accepted(ACCEPTED.read_text(encoding="utf-8"))
    lines = [f"no such mutation any more: {name}" for name in stale_names(ROOT, accepted)]
    mutations = list(read_mutations(options.packages))
    sample = [mutation for mutation in mutations if (mutation.name in accepted) == options.accepted]
    if not options.accepted:
        sample = draw(sample, options.packages, options.number, random.Random(options.seed))
    say(
        f"seed {options.seed}: {len(sample)} of {len(mutations)} mutations in "
        f"{' '.join(options.packages)}"
    )

    calls = read_calls(options.packages, UNIT_TESTS, record=options.record)
    others = (
        read_calls(options.packages, options.tests, record=options.record) if options.tests else {}
    )

    table: Counter[tuple[str, str]] = Counter()
    # A copy is in the queue while no thread changes it.
    copies: Queue[Path] = Queue()

    def attempt(mutation: Mutation) -> str:
        copy = copies.get()
        try:
            return try_mutation(
                copy, mutation, tests_of(mutation, calls), tests_of(mutation, others)
            )
        finally:
            copies.put(copy)

    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        for copy in _copies(Path(folder), options.jobs):
            copies.put(copy)

        for mutation, outcome in zip(sample, pool.map(attempt, sample), strict=True):
            parents = Path(mutation.path).parents
            package = next(name for name in options.packages if Path(name) in parents)
            table[package, outcome] += 1
            change = mutation.name.partition(" | ")[2]
            say(f"{outcome:22} {mutation.path}:{mutation.line}: {change}")
            if (outcome == SURVIVED) != options.accepted:
                lines.append(f"{mutation.name}: {outcome}")

    for package in options.packages:
        outcomes = (KILLED_BY_UNIT, KILLED, SURVIVED)
        numbers = ", ".join(f"{table[package, outcome]} {outcome}" for outcome in outcomes)
        say(f"{package}: {numbers}")
    say("\n".join(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
