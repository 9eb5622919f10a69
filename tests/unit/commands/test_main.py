"""The command line: what it says, without doing anything."""

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import click
import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.runtime import logs
from commands import main as command_line
from commands.main import COMMANDS, cli
from commands.options.groups import pick
from commands.run import run
from commands.webhook import WebhookOptions, client_config
from reconciler import manager
from sandbox import webhooks
from sandbox.environment import Sandbox
from sandbox.harvester.faults import KINDS, Kind
from sandbox.processes.children import free_ports
from sandbox.processes.gobuild import BuildError
from sandbox.state import ProcessRecord, SandboxSettings, State
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), prog_name="caphv")


def test_help_names_all_commands_without_importing_them() -> None:
    result = call("-h")
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)
    slow = ("aiohttp", "email", "sandbox", "yaml")
    script = f"import sys, commands.main; print([name for name in {slow} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


OFFLINE = {
    "help": ["--help"],
    "help of a command": ["run", "--help"],
    "completion": ["completion", "bash"],
    "schema": ["schema", "path"],
    "validate": ["validate", str(CHECKOUT / "examples" / "rke2-dhcp.yaml")],
    "generate": [
        *("generate", "--name", "production", "--namespace", "team-a", "--identity-secret", "harvester-identity"),
        *("--image", "default/sles-15-sp7", "--ssh-keypair", "default/admin", "--network", "default/production"),
        *("--ip-pool", "machines", "--gateway", "172.16.0.1", "--subnet-mask", "255.255.0.0"),
        *("--target-namespace", "team-a", "--no-rancher-auto-import"),
    ],
}


@pytest.mark.parametrize("arguments", OFFLINE.values(), ids=OFFLINE)
def test_command_that_makes_no_request_imports_no_client(arguments: list[str]) -> None:
    script = f"""
import sys
from caphv.__main__ import main
sys.argv = ["caphv", *{arguments!r}]
try:
    main()
finally:
    print([name for name in ("aiohttp", "kubernetes") if name in sys.modules], file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("doctor --deep", ""),
        ("doctor --hlep", " Did you mean '--help'?"),
        ("status --dep", " Did you mean '--deep'?"),
        ("bundles render --namespce", " Did you mean '--namespace'?"),
    ],
)
def test_an_unknown_option_is_compared_with_similar_ones(words: str, hint: str) -> None:
    result = CliRunner().invoke(cli, words.split())
    name = words.rsplit(maxsplit=1)[-1]
    assert (result.exit_code, result.output.splitlines()[-1]) == (2, f"Error: No such option '{name}'.{hint}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_can_be_called_and_gives_examples(name: str) -> None:
    result = call(name, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.output


@pytest.mark.parametrize("name", ["up", "status", "kubeconfig", "down", "fault"])
def test_every_sandbox_command_gives_examples(name: str) -> None:
    assert f"caphv sandbox {name}" in call("sandbox", name, "--help").output.partition("Examples:")[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    result = call("completion", shell)
    assert result.exit_code == 0
    assert "_CAPHV_COMPLETE" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["webhook", "--webhook-bind-address", "0"],
        ["run", "--metrics-bind-address", "8080"],
        ["packager", "run", "--repo", "file:///x", "--health-probe-bind-address", ":99999"],
        ["webhook", "--webhook-service", "name-only"],
        ["webhook", "--webhook-url", "http://plain"],
        ["webhook", "--webhook-url", "https://host", "--webhook-service", "a/b"],
        ["run", "--enable-webhooks", "--webhook-url", "https://host/path"],
        ["sandbox", "up", "--name", "../escape"],
        ["sandbox", "status", "--name", "a", "--dir", "b"],
        ["sandbox", "up", "--boot-spread", "2"],
        ["sandbox", "up", "--webhooks", "--no-provider"],
        ["sandbox", "fault", "nonsense"],
        ["sandbox", "fault", "host-failure"],
        ["sandbox", "fault", "slow", "--share", "0"],
        ["sandbox", "fault", "--name", "../escape", "list"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert call(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["validat"], "validate"),
        (["packager", "snyc"], "sync"),
        (["sandbox", "fault", "host-failur"], "host-failure"),
        (["run", "--kubeconfg=x"], "--kubeconfig"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_one_that_is_meant(arguments: list[str], meant: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert f"'{meant}'?" in result.output


def test_help_of_the_sandbox_and_the_readme_agree_on_its_first_start() -> None:
    texts = (CHECKOUT / "README.md").read_text(encoding="utf-8"), call("sandbox", "up", "--help").output
    times = [re.findall(r"takes ([a-z ]+ minutes) on two cores", " ".join(text.split())) for text in texts]
    assert len(times[0]) == 1
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("command", "default"),
    [(["packager", "run"], "a temporary directory"), (["bundles", "push"], "below ~/.cache/caphv")],
)
def test_help_names_the_folder_that_the_command_clones_into(command: list[str], default: str) -> None:
    assert f"[default: {default}" in " ".join(call(*command, "--help").output.split())


@pytest.mark.parametrize("command", [["packager", "run"], ["run", "--with-packager"]], ids=" ".join)
def test_packager_without_git_names_the_image_that_has_it(command: list[str]) -> None:
    """In a process of its own, because GitPython refuses to be imported without Git."""
    done = subprocess.run(
        [sys.executable, "-m", "caphv", *command],
        env={"PATH": "/nowhere", "CAPHV_GIT_REPO": "https://git.example.com/fleet.git"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "git is not in the PATH" in done.stderr
    assert "-packager" in done.stderr


@pytest.mark.parametrize("command", [["run"], ["packager", "run", "--repo", "file:///nowhere"]], ids=" ".join)
def test_a_stop_is_obeyed_while_the_management_cluster_is_unreachable(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_soon() -> asyncio.Event:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, stop.set)
        return stop

    for module in ("commands.run", "commands.packager.run"):
        monkeypatch.setattr(f"{module}.stop_signal", stop_soon)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    addresses = ("--metrics-bind-address", "0", "--health-probe-bind-address", "0")
    assert call(*command, "--kubeconfig", nowhere(tmp_path), *addresses).exit_code == 0


def nowhere(folder: Path) -> str:
    """A kubeconfig whose server does not answer."""
    user = {"name": "u", "user": {"token": "t"}}
    where = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {"current-context": "x", "contexts": [context], "clusters": [where], "users": [user]}
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return str(folder / "kubeconfig")


def test_the_liveness_probe_is_answered_while_the_management_cluster_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    answers: list[int] = []
    asking: list[asyncio.Task[None]] = []

    async def ask(stop: asyncio.Event) -> None:
        async with aiohttp.ClientSession() as session:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    while not answers:
                        await asyncio.sleep(0.02)
                        with contextlib.suppress(aiohttp.ClientConnectionError):
                            async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
                                answers.append(response.status)
        stop.set()

    def stop_once_asked() -> asyncio.Event:
        stop = asyncio.Event()
        asking.append(asyncio.get_running_loop().create_task(ask(stop)))
        return stop

    monkeypatch.setattr("commands.run.stop_signal", stop_once_asked)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    addresses = ("--metrics-bind-address", "0", "--health-probe-bind-address", f"127.0.0.1:{port}")
    assert call("run", "--kubeconfig", nowhere(tmp_path), *addresses).exit_code == 0
    assert answers == [200]


def test_a_sandbox_with_webhooks_has_a_provider_that_serves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    async def up(box: Sandbox, _report: object, *, fresh: bool) -> list[str]:
        asked.append(box.settings.webhooks)
        return ["etcd"]

    monkeypatch.setattr(Sandbox, "up", up)
    monkeypatch.setattr("sandbox.processes.binaries.prepare", lambda _report, **_further: None)
    for flags in (["--webhooks"], []):
        assert call("sandbox", "up", "--dir", str(tmp_path / "box"), *flags).exit_code == 0
    assert asked == [True, False]
    with run.make_context("caphv run", webhooks.provider_options(tmp_path)) as context:
        flags_of_run = context.params
    assert flags_of_run["enable_webhooks"]
    assert client_config(pick(WebhookOptions, flags_of_run)) == {
        "url": f"https://{flags_of_run['webhook_bind_address']}"
    }
    assert {path.name for path in Path(flags_of_run["webhook_cert_dir"]).iterdir()} == {"tls.crt", "tls.key", "ca.crt"}


def test_status_of_nothing_exits_with_1(tmp_path: Path) -> None:
    result = call("sandbox", "status", "--dir", str(tmp_path), "-o", "json")
    assert result.exit_code == 1
    assert '"status": "absent"' in result.output


def test_commands_for_a_sandbox_fit_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "my box"
    result = call("sandbox", "status", "--dir", str(folder))
    assert f"To start it: caphv sandbox up --dir '{folder}'" in result.output


@pytest.mark.parametrize("output", ["text", "yaml"])
def test_status_of_a_broken_sandbox_names_the_missing_part(tmp_path: Path, output: str) -> None:
    State(SandboxSettings(), network="127.10.0.0/16", ready=True, processes={"etcd": ProcessRecord(1)}).save(tmp_path)
    result = call("sandbox", "status", "--dir", str(tmp_path), "-o", output)
    assert result.exit_code == 1
    assert "127.10.0.0/16" in result.output
    if output == "yaml":
        assert yaml.safe_load(result.output)["items"][0]["running"] is False
    else:
        assert "not running" in result.output


def test_kubeconfig_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    result = call("sandbox", "kubeconfig", "--dir", str(tmp_path))
    assert result.exit_code == 1
    assert "caphv sandbox up" in result.output


def test_a_broken_sandbox_names_the_command_that_fixes_it(tmp_path: Path) -> None:
    parts = {"etcd": ProcessRecord(1), "core": ProcessRecord(os.getpid())}
    State(SandboxSettings(), network="127.10.0.0/16", ready=True, processes=parts).save(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "etcd.log").write_text("first\nlast\n")
    status = call("sandbox", "status", "--dir", str(tmp_path))
    assert f"keep all clusters: caphv sandbox up --dir {tmp_path}" in status.output
    assert f"caphv sandbox logs etcd --dir {tmp_path}" in status.output
    assert call("sandbox", "logs", "etcd", "--tail", "1", "--dir", str(tmp_path)).output == "last\n"
    assert call("sandbox", "logs", "etcd", "--dir", str(tmp_path)).output == "first\nlast\n"
    unknown = call("sandbox", "logs", "nothing", "--dir", str(tmp_path))
    assert (unknown.exit_code, "existing: etcd" in unknown.output) == (1, True)
    unknown = call("sandbox", "restart", "nothing", "--dir", str(tmp_path))
    assert (unknown.exit_code, "its parts: etcd, core" in unknown.output) == (1, True)


def test_new_lines_of_a_log_are_printed_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    State(SandboxSettings(), network="127.10.0.0/16", ready=True, processes={}).save(tmp_path)
    log = tmp_path / "logs" / "etcd.log"
    log.parent.mkdir()
    log.write_text("first\n")
    lines = ["second\n", "third\n"]

    def sleep(_seconds: float) -> None:
        if not lines:
            raise KeyboardInterrupt
        with log.open("a") as file:
            file.write(lines.pop(0))

    monkeypatch.setattr("commands.sandbox.group.time", SimpleNamespace(sleep=sleep))
    result = call("sandbox", "logs", "etcd", "--follow", "--dir", str(tmp_path))
    assert result.stdout.startswith("first\nsecond\nthird\n")


@pytest.mark.parametrize("command", ["up", "demo"])
def test_the_core_of_the_environment_is_built(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_report: object, *, core: str, **_further: object) -> None:
        raise BuildError(f"cannot build {core}")

    monkeypatch.setattr("sandbox.processes.binaries.prepare", fail)
    monkeypatch.setenv("CAPHV_SANDBOX_CORE", "cluster-api-core-1.14")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    result = call("sandbox", command)
    assert (result.exit_code, result.output.strip()) == (1, "Error: cannot build cluster-api-core-1.14")


def test_down_of_nothing_is_fine(tmp_path: Path) -> None:
    result = call("sandbox", "down", "--dir", str(tmp_path / "nothing"))
    assert result.exit_code == 0
    assert "does not exist" in result.output


def test_down_keeps_its_hands_off_folders_of_others(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    result = call("sandbox", "down", "--dir", str(tmp_path))
    assert result.exit_code == 1
    assert "letter.txt" in {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_kind_of_fault_explains_itself(kind: Kind) -> None:
    assert kind.summary in " ".join(call("sandbox", "fault", "--help").output.split())
    explained = " ".join(call("sandbox", "fault", kind.name, "--help").output.split()).replace("- ", "-")
    assert kind.summary in explained
    assert kind.target in explained
    assert (f"caphv sandbox fault clear {kind.name}" in explained) is kind.lasting
    assert ("--share" in explained) is kind.in_transport


def test_fault_without_a_sandbox_says_how_to_start_one(tmp_path: Path) -> None:
    result = call("sandbox", "fault", "--dir", str(tmp_path), "list")
    assert result.exit_code == 1
    assert "caphv sandbox up" in result.output


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [([], False), (["--allow-insecure-identities"], True), (["-allow-insecure-identities=true"], True)],
)
def test_insecure_identities_are_allowed_by_flag_only(
    arguments: list[str], allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    async def run(options: manager.ProviderOptions, *_: object) -> None:
        seen.append(options.allow_insecure_identities)

    monkeypatch.setattr(manager, "run", run)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    assert call("run", *arguments).exit_code == 0
    assert seen == [allowed]


def test_a_full_disk_behind_the_output_is_reported() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "caphv", "schema", "print"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_text_that_an_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    monkeypatch.setattr(command_line, "cli", lambda **_: click.echo("✗ a\udcff"))
    command_line.main()
    mark = "✗" if encoding == "utf-8" else r"\u2717"
    assert written.getvalue().decode(encoding) == rf"{mark} a\udcff" + "\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_has_its_streams_although_they_are_closed(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    seen = []
    monkeypatch.setattr(sys, stream, None)
    monkeypatch.setattr(command_line, "cli", lambda **_: seen.append(getattr(sys, stream).isatty()))
    command_line.main()
    assert seen == [False]
