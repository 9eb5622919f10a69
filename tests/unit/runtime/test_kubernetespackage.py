"""The REST client of the `kubernetes` package comes without the rest of the package, which still works for others."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

UNUSED = ("requests", "oauthlib", "pydantic", "websocket", "kubernetes.client", "kubernetes.aio.client.api_client")


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_provider_imports_no_library_that_it_does_not_use() -> None:
    program = f"import sys, reconciler.manager; print([name for name in {UNUSED} if name in sys.modules])"
    assert run(program) == "[]"


@pytest.mark.parametrize(
    "program",
    [
        # A second of CPU each: the short run has one for the package and one for its part with asyncio.
        pytest.param("import kubernetes; print(kubernetes.client.CoreV1Api.__name__)", marks=pytest.mark.long),
        "from kubernetes import client; print(client.CoreV1Api.__name__)",
        pytest.param("import kubernetes.client; print(kubernetes.client.CoreV1Api.__name__)", marks=pytest.mark.long),
        "from kubernetes.aio import client; print(client.CoreV1Api.__name__)",
    ],
)
def test_package_is_whole_for_others_in_the_process(program: str) -> None:
    assert run(f"import caphv.runtime.transport; {program}") == "CoreV1Api"


def test_package_that_was_imported_before_stays() -> None:
    program = "import kubernetes; import caphv.runtime.transport; print(kubernetes.__version__)"
    assert run(program)


def test_unknown_attribute_is_an_attribute_error() -> None:
    assert run("import caphv.runtime.transport, kubernetes; print(hasattr(kubernetes, 'absent'))") == "False"
