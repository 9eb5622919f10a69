"""What remotes say is sorted, and cleaned of secrets."""

import base64
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.git import errors
from packager.git.errors import Redactor, classify

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("fatal: write error: No space left on device", errors.DiskFull),
        ("error: file write error: File too large", errors.DiskFull),
        ("Host key verification failed.\nfatal: Could not read from remote repository.", errors.UnknownHost),
        ("fatal: Authentication failed for 'https://host/a.git/'", errors.AccessDenied),
        ("fatal: could not read Username for 'https://host': terminal prompts disabled", errors.AccessDenied),
        ("git@host: Permission denied (publickey).\nfatal: Could not read from remote", errors.AccessDenied),
        ("remote: Repository not found.", errors.AccessDenied),
        ("error: object file objects/ab/cd is empty\nfatal: loose object abcd is corrupt", errors.CorruptClone),
        ("!\ta:refs/heads/main\t[remote rejected] (pre-receive hook declined)", errors.Rejected),
        ("remote: GH006: Protected branch update failed", errors.Rejected),
        ("fatal: unable to access 'https://host/': Could not resolve host: host", errors.Unreachable),
        ("fatal: unable to access 'https://host/': The requested URL returned error: 503", errors.Unreachable),
        ("fatal: unable to access 'https://host/': SSL certificate problem: unable to get", errors.Unreachable),
        ("something else", errors.GitError),
    ],
)
def test_what_a_remote_says(output: str, kind: type[errors.GitError]) -> None:
    error = classify("pushing", output, local=False)
    assert type(error) is kind
    assert output in str(error)


def test_a_full_disk_of_the_server_is_not_taken_for_our_own() -> None:
    output = (
        "remote: fatal: unable to write loose object file: No space left on device\n"
        "error: remote unpack failed: unpack-objects abnormal exit\n"
        "!\tHEAD:refs/heads/main\t[remote rejected] (unpacker error)"
    )
    error = classify("pushing", output, local=False)
    assert type(error) is errors.Rejected
    assert "free space on the Git server" in str(error)


def test_what_the_clone_says() -> None:
    assert type(classify("reading", "fatal: something else", local=True)) is errors.CorruptClone
    assert type(classify("writing", "fatal: No space left on device", local=True)) is errors.DiskFull


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=6, max_size=30), st.text())
def test_no_form_of_a_secret_is_left(secret: str, around: str) -> None:
    redact = Redactor([secret, f"user:{secret}"])
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    quoted = urllib.parse.quote(secret, safe="")
    for form in {secret, quoted, basic} - {""}:
        if form not in around and form not in "***":
            assert form not in redact(f"fatal: {form} at https://host/").replace("***", "")


def test_addresses_headers_hints_and_control_characters() -> None:
    text = "hint: try\n\x1b[31mremote:\x1b[0m https://user:pw@host/a\r\nAuthorization: Basic dXNlcjpwYXNz\n"
    assert Redactor()(text) == "remote: https://***@host/a\nAuthorization: Basic ***"
    assert len(Redactor()("x" * 5000)) == 2001


def test_lines_of_keys() -> None:
    key = "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n-----END KEY-----\n"
    assert Redactor([key])("load key: ijklmnop") == "load key: ***"
