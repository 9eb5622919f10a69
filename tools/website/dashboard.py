"""Draw the Grafana dashboard without Grafana: `python -m tools.website.dashboard FILE.svg`.

A cluster runs in a sandbox, with webhooks and a packager. The metrics of provider and packager are
read every five seconds, as a Prometheus does, and promtool evaluates the queries of all panels.
A lost VM and an outage of Harvester show what panels look like when something is wrong.
"""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from caphv import data
from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import Obj
from sandbox.cluster import ClusterSpec, definition
from sandbox.environment import Sandbox
from sandbox.processes import binaries, children
from sandbox.scenario.gitops import GitOps
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings, State
from tools.website.panels import SCRAPE_SECONDS, Labels, Points, filled_in, picture

# $__rate_interval is four scrapes; the other variables stand for all values.
VARIABLES = {
    "__rate_interval": f"{4 * SCRAPE_SECONDS}s",
    "cluster": ".*",
    "identity": ".*",
    "controller": ".*",
}
_METRICS = "--metrics-bind-address="
_SETTLE_SECONDS = 20
_OUTAGE_SECONDS = 15
_TIMESTAMP = "_timestamp_seconds"
# How promtool reports the result of a query, because the test expects none.
_RESULT = re.compile(
    r'^ +expr: ("(?:[^"\\]|\\.)*"), time: (\S+),\n +exp: nil\n +got: (.*)$', re.MULTILINE
)
_SAMPLE = re.compile(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\} ([^\s,]+)')
_LABEL = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')
_PARTS = re.compile(r"(\d+)([hms])")


class Scrapes:
    """What several scrapes have read, by series."""

    def __init__(self) -> None:
        self.count = 0
        self.values: dict[str, Points] = defaultdict(dict)
        self._start = 0.0

    def add(self, instance: str, text: str) -> None:
        """Add what an instance serves to the present scrape."""
        self._start = self._start or time.time()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {**sample.labels, "instance": instance, "job": "caphv"}
                inner = ",".join(f"{key}={json.dumps(value)}" for key, value in labels.items())
                value = sample.value
                if sample.name.endswith(_TIMESTAMP) and value:
                    value -= self._start  # promtool begins at 0
                self.values[f"{sample.name}{{{inner}}}"][self.count] = value

    def series(self) -> list[dict[str, str]]:
        """Return the input of promtool; a series that ends is marked as a Prometheus does."""
        return [
            {"series": name, "values": " ".join(self._values(points))}
            for name, points in self.values.items()
        ]

    def _values(self, points: Points) -> Iterator[str]:
        """Yield the value of each scrape in the notation of promtool."""
        last = max(points)
        for scrape in range(self.count):
            if scrape in points:
                yield repr(points[scrape])
            else:
                yield "stale" if scrape == last + 1 else "_"


async def record(folder: Path) -> Scrapes:
    """Run a cluster in a sandbox and return the metrics of provider and packager."""
    box = Sandbox(folder, SandboxSettings(webhooks=True))
    scrapes = Scrapes()
    try:
        await box.up()
        state = State.load(folder)
        if state is None:
            sys.exit("the sandbox has no state")
        await _let_identity_expire(folder)
        scenario = Scenario(folder, in_network(ClusterSpec(), state.network))
        provider = next(
            word.removeprefix(_METRICS)
            for word in state.processes["provider"].command
            if word.startswith(_METRICS)
        )
        async with scenario.watching():
            reading = asyncio.create_task(_read(scrapes, {"provider:8443": provider}, folder))
            try:
                await _live(scenario, folder)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
    finally:
        await box.down()
    return scrapes


async def _let_identity_expire(folder: Path) -> None:
    """Replace the lasting token of the sandbox's identity by one that expires."""
    command = [
        *(sys.executable, "-m", "caphv", "identity", "create", "-o", "kubeconfig"),
        *("--harvester-kubeconfig", str(folder / "harvester-direct.kubeconfig")),
        *("--target-namespace", ClusterSpec().target_namespace, "--expires-in", "30"),
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    created, _ = await process.communicate()
    if process.returncode:
        sys.exit("no account can be created")

    file = folder / "identity.kubeconfig"
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    config["users"][0]["user"] = yaml.safe_load(created)["users"][0]["user"]
    file.write_text(yaml.safe_dump(config), encoding="utf-8")


async def _live(scenario: Scenario, folder: Path) -> None:
    """Let a cluster live, and leave it with a lost machine."""
    await asyncio.sleep(_SETTLE_SECONDS)
    await scenario.define()
    _start_packager(folder)
    await scenario.bring_up()
    GitOps(folder).push(definition(scenario.spec, 1400), "Reduce the MTU")
    await scenario.replace_lost(scenario.view.workers()[0])
    await _fault(folder, "away")
    await asyncio.sleep(_OUTAGE_SECONDS)
    await _fault(folder, "clear")
    await scenario.scale(scenario.spec.control_planes, scenario.spec.workers + 1)
    await asyncio.sleep(_SETTLE_SECONDS)
    await scenario.scale(scenario.spec.control_planes, 1)
    await scenario.replace_lost(scenario.view.control_planes()[0])
    await asyncio.sleep(_SETTLE_SECONDS)
    await scenario.destroy(infrastructure_ref(scenario.view.workers()[0])[1])
    await asyncio.sleep(2 * SCRAPE_SECONDS)


def _start_packager(folder: Path) -> None:
    """Start a packager with the repositories of the scenario, and write where it serves metrics."""
    (port,) = children.free_ports(1)
    command = [
        *(sys.executable, "-m", "caphv", "packager", "run"),
        f"--repo=file://{folder / 'fleet.git'}",
        f"--source-repo=file://{folder / 'clusters.git'}",
        f"--kubeconfig={folder / 'management.kubeconfig'}",
        f"{_METRICS}127.0.0.1:{port}",
        "--health-probe-bind-address=0",
        "--interval=15",
    ]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    children.start(folder, "packager", command, env=environment)
    (folder / "packager.address").write_text(f"127.0.0.1:{port}", encoding="utf-8")


async def _fault(folder: Path, kind: str) -> None:
    command = [sys.executable, "-m", "caphv", "sandbox", "fault", "--dir", str(folder), kind]
    process = await asyncio.create_subprocess_exec(*command)
    if await process.wait():
        sys.exit(f"fault {kind} failed")


async def _read(scrapes: Scrapes, instances: Mapping[str, str], folder: Path) -> None:
    """Scrape all instances at the interval, and the packager once it runs."""
    start = time.monotonic()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SCRAPE_SECONDS)) as session:
        while True:
            addresses = dict(instances)
            if (file := folder / "packager.address").exists():
                addresses["packager:8443"] = file.read_text(encoding="utf-8")
            for instance, address in addresses.items():
                try:
                    async with session.get(f"http://{address}/metrics") as answer:
                        scrapes.add(instance, await answer.text())
                except (aiohttp.ClientError, TimeoutError):
                    sys.stderr.write(f"{instance} does not answer\n")
            scrapes.count += 1
            await asyncio.sleep(start + scrapes.count * SCRAPE_SECONDS - time.monotonic())


def evaluate(
    scrapes: Scrapes, queries: Sequence[str], folder: Path
) -> dict[str, dict[Labels, Points]]:
    """Return the series of each query at each scrape, as promtool evaluates it."""
    times = [f"{scrape * SCRAPE_SECONDS}s" for scrape in range(scrapes.count)]
    tests = [
        {"expr": query, "eval_time": moment, "exp_samples": []}
        for query in queries
        for moment in times
    ]
    case = {
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": scrapes.series(),
        "promql_expr_test": tests,
    }
    # promtool reads samples up to the last evaluation of rules, by default each full minute.
    content = {"rule_files": [], "evaluation_interval": case["interval"], "tests": [case]}
    file = folder / "case.yaml"
    file.write_text(json.dumps(content), encoding="utf-8")
    command = [str(binaries.binary("promtool")), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "err:" in done.stderr:
        sys.exit(done.stderr[-2000:])

    results: dict[str, dict[Labels, Points]] = {query: defaultdict(dict) for query in queries}
    for expression, moment, samples in _RESULT.findall(done.stdout + done.stderr):
        scrape = _seconds(moment) // SCRAPE_SECONDS
        for labels, value in _SAMPLE.findall(samples):
            pairs = tuple(
                (name, str(json.loads(text)))
                for name, text in _LABEL.findall(labels)
                if name != "__name__"
            )
            results[json.loads(expression)][pairs][scrape] = float(value)
    return results


def _seconds(text: str) -> int:
    """Return the seconds of a duration such as `1m5s`."""
    sizes = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * sizes[unit] for number, unit in _PARTS.findall(text))


def main(file: Path) -> None:
    """Record a run and write its picture."""
    path = data.folder("deploy/kustomize") / "monitoring" / "caphv-dashboard.json"
    dashboard: Obj = json.loads(path.read_text(encoding="utf-8"))
    queries = [
        filled_in(target["expr"], VARIABLES)
        for panel in dashboard["panels"]
        for target in panel.get("targets") or ()
    ]
    # Unix sockets below the folder limit the length of its path.
    with tempfile.TemporaryDirectory(prefix="caphv-dashboard-") as folder:
        scrapes = asyncio.run(record(Path(folder) / "box"))
        results = evaluate(scrapes, list(dict.fromkeys(queries)), Path(folder))
    file.write_text(picture(dashboard, results, VARIABLES, scrapes.count), encoding="utf-8")


if __name__ == "__main__":
    binaries.prepare()
    main(Path(sys.argv[1]))
