"""The real Helm controller of RKE2 and K3s next to an API server, and a runner of its Jobs.

The controller gets neither kubelets nor a controller of Jobs. The runner does the part of both: it reports a suspended
Job, and runs a resumed one as the script in its image does, with the mounted Secrets and ConfigMaps.
"""

from __future__ import annotations

import base64
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath

from caphv.api.object import CONFIG_MAPS, SECRETS, Key, Obj, Resource, at, key_of, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, NotFound, TooManyRequests
from sandbox.processes import binaries, children, pki
from sandbox.processes.apiserver import ApiServer, private_file
from tests.support.addons.helm import Helm, HelmError
from tests.support.addons.helmjob import HelmJob, JobOptions
from tests.support.resources import HELM_CHART_CONFIGS, HELM_CHARTS
from tests.support.waiting import until

JOBS = Resource("batch", "v1", "jobs", "Job")
_CHART_LABEL = "helmcharts.helm.cattle.io/chart"
_HASH_LABEL = "helmcharts.helm.cattle.io/configHash"
_VALUES, _CONTENT = "/config", "/chart"
_SETTLED_SECONDS = 120.0

WriteChart = Callable[[str, str, Path], None]
"""Writes a chart of a repository into an empty folder: its name and its version."""


@contextlib.asynccontextmanager
async def real_helm_controller(
    server: ApiServer, client: ApiClient, folder: Path, write_chart: WriteChart
) -> AsyncIterator[RealHelmController]:
    """Lend the controller of one API server. `folder` is for its log; `write_chart` stands for chart repositories."""
    controller = RealHelmController(server, client, folder, write_chart)
    try:
        yield controller
    finally:
        await controller.stop()


class RealHelmController:
    """The controller and its Jobs, with the interface of the stand-in.

    `errors` is what Helm says of each chart whose Job failed last, by name of the HelmChart; `uninstalled` counts how
    often the failure policy uninstalled a chart.
    """

    def __init__(self, server: ApiServer, client: ApiClient, folder: Path, write_chart: WriteChart) -> None:
        self._server, self._client, self._folder, self._write_chart = server, client, folder, write_chart
        self._helm = Helm(server.kubeconfig())
        self._process: children.Process | None = None
        self._last: dict[str, Inputs] = {}
        """What the last Job of each release had. A Secret with values is newer than its Job for a moment."""
        self.errors: dict[str, str] = {}
        self.uninstalled: Counter[str] = Counter()

    async def start(self) -> None:
        """Start the controller, which installs its kinds, if it does not run."""
        if self._process:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        kubeconfig = self._folder / "helm-controller.kubeconfig"
        private_file(kubeconfig, pki.to_yaml(self._server.kubeconfig()))
        program = binaries.binary("helm-controller")
        self._process = children.start(self._folder, "helm-controller", [program, f"--kubeconfig={kubeconfig}"])

        async def serves_its_kinds() -> bool:
            try:
                for kind in (HELM_CHARTS, HELM_CHART_CONFIGS):
                    await self._client.list(kind)
            except (NotFound, TooManyRequests):
                return False
            return True

        await until(serves_its_kinds, self._process.log_tail)

    async def stop(self) -> None:
        """Stop the controller if it runs."""
        if self._process:
            await children.end(self._process)

    async def reconcile(self) -> list[str]:
        """Run Jobs until each HelmChart has one that succeeded or failed. Return names of HelmCharts that succeeded."""
        assert self._process
        failed: set[str] = set()
        await until(partial(self._settle, failed), self._process.log_tail, _SETTLED_SECONDS)
        charts = await self._list(HELM_CHARTS)
        return sorted(name for name in (key_of(obj).name for obj in charts) if name not in self.errors)

    async def _settle(self, failed: set[str]) -> bool:
        """Do what is to do now. Return whether that was all; `failed` has the uids of Jobs that failed meanwhile."""
        try:
            await self._act_on_jobs(failed)
            return await self._are_settled(failed)
        except NotFound:
            # The controller replaces Jobs at any time.
            return False

    async def _act_on_jobs(self, failed: set[str]) -> None:
        for job in await self._list(JOBS):
            if at(job, "metadata", "labels", _CHART_LABEL) and uid_of(job) not in failed:
                await self._act(job, failed)

    async def _are_settled(self, failed: set[str]) -> bool:
        jobs = {key_of(obj): obj for obj in await self._list(JOBS)}
        charts = {key_of(obj): obj for obj in await self._list(HELM_CHARTS)}
        configs = {key_of(obj): obj["spec"] for obj in await self._list(HELM_CHART_CONFIGS)}
        self.errors = {name: text for name, text in self.errors.items() if name in {key.name for key in charts}}
        return all(
            [
                await self._is_settled(obj["spec"], configs.get(key), jobs.get(_install_job(key)), failed)
                for key, obj in charts.items()
                if not at(obj, "metadata", "deletionTimestamp")
            ]
        ) and not any(at(obj, "metadata", "deletionTimestamp") for obj in charts.values())

    async def _is_settled(self, spec: Obj, config: Obj | None, job: Obj | None, failed: set[str]) -> bool:
        """Return whether the Job of a HelmChart is the one that its spec asks for, and has an outcome."""
        if job is None or at(job, "spec", "suspend"):
            return False
        pod = await self._pod(job)
        texts = [spec.get("valuesContent"), (config or {}).get("valuesContent")]
        values = [text.encode() for text in texts if text]
        inputs = Inputs(JobOptions.of(spec, config), spec.get("version", ""), values)
        if self._last.get(pod.environment["NAME"]) != inputs:
            return False

        if uid_of(job) in failed:
            return True
        release = await self._newest_release(pod)
        labels = at(release, "metadata", "labels") or {}
        return (labels.get("status"), labels.get(_HASH_LABEL)) == ("deployed", pod.environment["CONFIG_HASH"])

    async def _newest_release(self, pod: Pod) -> Obj | None:
        selector = f"owner=helm,name={pod.environment['NAME']}"
        page = await self._client.list(SECRETS, pod.environment["TARGET_NAMESPACE"], label_selector=selector)
        return max(page["items"], key=lambda obj: int(obj["metadata"]["labels"]["version"]), default=None)

    async def _act(self, job: Obj, failed: set[str]) -> None:
        """Do with a Job what its controller and a kubelet do."""
        if _has(job, "Complete"):
            return
        if job["spec"].get("suspend"):
            if not _has(job, "Suspended"):
                await self._report(job, {"active": 0, "startTime": None}, {"Suspended": "True"})
            return

        if not at(job, "status", "active"):
            started = {"active": 1, "startTime": _now()}
            await self._report(job, started, {"Suspended": "False"} if at(job, "status", "conditions") else {})
        name = job["metadata"]["labels"][_CHART_LABEL]
        try:
            await self._run(await self._pod(job))
        except HelmError as error:
            # The container restarts, so that its Job stays active.
            self.errors[name] = str(error)
            failed.add(uid_of(job))
            return
        self.errors.pop(name, None)
        done = {"active": 0, "succeeded": 1, "completionTime": _now()}
        await self._report(job, done, {"SuccessCriteriaMet": "True", "Complete": "True"})

    async def _report(self, job: Obj, status: Obj, conditions: Mapping[str, str]) -> None:
        """Write the status of a Job, unless it was changed or replaced meanwhile: then the next look decides."""
        key = key_of(job)
        current = await self._client.get(JOBS, key.name, key.namespace)
        if uid_of(current) != uid_of(job) or current["spec"] != job["spec"]:
            return
        rows = {row["type"]: row for row in at(current, "status", "conditions") or ()}
        for kind, value in conditions.items():
            rows[kind] = {"type": kind, "status": value, "reason": kind, "lastTransitionTime": _now()}
        patch = {
            "metadata": {"resourceVersion": current["metadata"]["resourceVersion"]},
            "status": {**status, "conditions": list(rows.values())},
        }
        with contextlib.suppress(Conflict):
            await self._client.patch(JOBS, key.name, key.namespace, patch, subresource="status")

    async def _pod(self, job: Obj) -> Pod:
        """Return the container of a Job with the content of its volumes."""
        spec = job["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        files: dict[PurePosixPath, bytes] = {}
        for mount in container["volumeMounts"]:
            content = await self._content(volumes[mount["name"]], job["metadata"]["namespace"])
            files |= {PurePosixPath(mount["mountPath"]) / name: data for name, data in content.items()}
        environment = {row["name"]: row.get("value", "") for row in container["env"]}
        return Pod(container["args"], environment, files)

    async def _content(self, volume: Obj, namespace: str) -> dict[str, bytes]:
        """Return the files of a volume by name. Raises KeyError for a kind that Jobs of ours do not have."""
        if "emptyDir" in volume:
            return {}
        if "configMap" in volume:
            return await self._data(CONFIG_MAPS, Key(namespace, volume["configMap"]["name"]))
        if "secret" in volume:
            return await self._data(SECRETS, Key(namespace, volume["secret"]["secretName"]))
        files: dict[str, bytes] = {}
        for source in volume["projected"]["sources"]:
            data = await self._data(SECRETS, Key(namespace, source["secret"]["name"]))
            files |= {item["path"]: data[item["key"]] for item in source["secret"].get("items", ())}
        return files

    async def _data(self, resource: Resource, key: Key) -> dict[str, bytes]:
        obj = await self._client.get(resource, key.name, key.namespace)
        rows: dict[str, str] = obj.get("data") or {}
        if resource == SECRETS:
            return {name: base64.b64decode(value) for name, value in rows.items()}
        return {name: value.encode() for name, value in rows.items()}

    async def _run(self, pod: Pod) -> None:
        """Run the script in the image. Raises HelmError."""
        environment = pod.environment
        job = HelmJob(
            self._helm,
            environment["NAME"],
            environment["TARGET_NAMESPACE"],
            pod.inputs.options,
            environment["EXPECTED_RELEASE_REVISION"],
        )
        if pod.arguments == ["delete"]:
            await job.uninstall()
            return

        self._last[job.release] = pod.inputs
        with tempfile.TemporaryDirectory(prefix="caphv-job-") as scratch:
            chart, values = self._mount(pod, Path(scratch))

            async def run(action: str, flags: Sequence[str]) -> None:
                label = f"--labels={_HASH_LABEL}={environment['CONFIG_HASH']}"
                words = [*pod.arguments[1:], job.release, str(chart), label, *flags, *values]
                await self._helm.run(action, *words, namespace=job.namespace)

            await job.install_or_upgrade(run, self.uninstalled)

    def _mount(self, pod: Pod, folder: Path) -> tuple[Path, list[str]]:
        """Write chart and values below a folder. Return the chart, and options that name the files of values."""
        chart = folder / "chart"
        content = pod.files.get(PurePosixPath(_CONTENT) / f"{pod.environment['NAME']}.tgz.base64")
        if content:
            chart = chart.with_suffix(".tgz")
            chart.write_bytes(base64.b64decode(content))
        else:
            chart.mkdir()
            name = pod.environment["CHART"].rpartition("/")[2]
            self._write_chart(name, pod.environment["VERSION"], chart)

        values = []
        for number, text in enumerate(pod.inputs.values):
            file = folder / f"values-{number}.yaml"
            file.write_bytes(text)
            values.append(f"--values={file}")
        return chart, values

    async def _list(self, resource: Resource) -> list[Obj]:
        return list((await self._client.list(resource))["items"])


@dataclass(frozen=True)
class Inputs:
    """What a Job has of a HelmChart and its HelmChartConfig. Later values win."""

    options: JobOptions
    version: str
    values: Sequence[bytes]


@dataclass(frozen=True)
class Pod:
    """The container of a Job: its arguments, environment and mounted files."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    files: Mapping[PurePosixPath, bytes]

    @property
    def inputs(self) -> Inputs:
        """Return what it has of the HelmChart and its HelmChartConfig."""
        options = JobOptions(self.environment["FAILURE_POLICY"], self.environment["FORCE_CONFLICTS"] == "true")
        files = [path for path in self.files if path.match(f"{_VALUES}/*.yaml")]
        return Inputs(options, self.environment["VERSION"], [self.files[path] for path in sorted(files)])


def _install_job(chart: Key) -> Key:
    return Key(chart.namespace, f"helm-install-{chart.name}")


def _has(job: Obj, kind: str) -> bool:
    return any(row["type"] == kind and row["status"] == "True" for row in at(job, "status", "conditions") or ())


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
