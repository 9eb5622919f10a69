"""Names of images by version, and what a cluster may import: for every text, not only for the nice ones."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv import data
from caphv.api import bootimage
from caphv.api.bootimage import (
    ImageImport,
    ImageLookupError,
    import_problems,
    imports,
    is_iso,
    look_up,
    with_image_names,
)
from caphv.api.object import Obj

pytestmark = pytest.mark.unit

SUM = "0123456789abcdef" * 8
URL = "https://images.example.com/sles.qcow2"
VERSIONS = st.from_regex(r"v[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2}(\+(rke2r|k3s)[0-9])?", fullmatch=True)
SYSTEMS = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,10}[a-z0-9])?", fullmatch=True)
LITERALS = st.from_regex(r"[a-z0-9]([-a-z0-9_.]{0,10}[a-z0-9])?", fullmatch=True)


@given(st.sampled_from(["/", "../x", "kube-system/y", "a b", "x\n", "{{.BaseOS}}"]), st.booleans())
def test_no_value_leads_elsewhere(value: str, as_version: bool) -> None:
    lookup = {"format": "default/a{{.BaseOS}}{{.K8sVersion}}", "baseOS": "s" if as_version else value}
    with pytest.raises(ImageLookupError, match="gives"):
        look_up(lookup, value if as_version else "v1.36.2")


def machine(*volumes: Obj) -> Obj:
    return {"metadata": {"name": "m"}, "spec": {"cpu": 2, "volumes": list(volumes)}}


def test_the_terms_are_those_of_other_providers_and_a_plus_becomes_a_dash() -> None:
    lookup = {"format": "default/{{.BaseOS}}-{{ .K8sVersion }}", "baseOS": "sles-15-sp7"}
    assert look_up(lookup, "v1.36.2+rke2r1") == "default/sles-15-sp7-1.36.2-rke2r1"
    assert look_up({"format": "talos-{{.K8sVersion}}"}, "1.36.2") == "talos-1.36.2"
    assert look_up({"format": "default/sles"}, "") == "default/sles"


@given(LITERALS, SYSTEMS, VERSIONS)
def test_a_name_has_the_version_and_nothing_of_the_template(literal: str, system: str, version: str) -> None:
    name = look_up({"format": f"{literal}-{{{{.BaseOS}}}}-{{{{.K8sVersion}}}}", "baseOS": system}, version)
    assert name == f"{literal}-{system}-{version[1:].replace('+', '-')}"
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", name)


@given(VERSIONS, VERSIONS)
def test_two_versions_have_two_images(one: str, other: str) -> None:
    lookup = {"format": "default/sles-{{.K8sVersion}}"}
    assert (look_up(lookup, one) == look_up(lookup, other)) == (one == other)


@given(st.text(max_size=80), st.text(max_size=20), st.text(max_size=30))
def test_any_text_gives_a_reference_or_an_error(text: str, system: str, version: str) -> None:
    try:
        reference = look_up({"format": text, "baseOS": system}, version)
    except ImageLookupError:
        return
    namespace, _, name = reference.rpartition("/")
    assert namespace == text.rpartition("/")[0]
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", name)


@pytest.mark.parametrize(
    ("lookup", "version", "problem"),
    [
        ({"format": "{{.Version}}"}, "v1.36.2", "format must be a name"),
        ({"format": "sles-{{.K8sVersion}}\n"}, "v1.36.2", "format must be a name"),
        ({"format": 7}, "v1.36.2", "format must be a name"),
        ({}, "v1.36.2", "format must be a name"),
        ({"format": "{{.BaseOS}}"}, "v1.36.2", "set baseOS"),
        ({"format": "{{.BaseOS}}", "baseOS": "default/sles"}, "v1.36.2", "gives"),
        ({"format": "sles-{{.K8sVersion}}"}, "", "set spec.version"),
        ({"format": "s" * 60 + "-{{.K8sVersion}}"}, "v1.36.2", "at most 63"),
    ],
)
def test_an_error_says_what_to_do(lookup: dict[str, Any], version: str, problem: str) -> None:
    with pytest.raises(ImageLookupError, match=problem):
        look_up(lookup, version)


def test_a_machine_without_lookups_is_the_same_object() -> None:
    before = machine({"volumeType": "image", "imageName": "default/sles"})
    after, problems = with_image_names(before, "v1.36.2")
    assert after is before
    assert problems == []


def test_lookups_become_names_next_to_them_and_all_problems_are_reported_at_once() -> None:
    before = machine(
        {"volumeType": "image", "imageLookup": {"format": "sles-{{.K8sVersion}}"}},
        {"volumeType": "image", "imageName": "default/tools"},
        {"volumeType": "image", "imageLookup": {"format": "{{.BaseOS}}"}},
        {"volumeType": "image", "imageLookup": {"format": "*"}},
    )
    after, problems = with_image_names(before, "v1.36.2")
    assert [volume.get("imageName") for volume in after["spec"]["volumes"]] == [
        *("sles-1.36.2", "default/tools", None, None)
    ]
    assert "imageName" not in before["spec"]["volumes"][0]
    assert [problem.partition(":")[0] for problem in problems] == [
        f"spec.volumes[{index}].imageLookup" for index in (2, 3)
    ]


def test_imports_are_found_by_namespace_and_name() -> None:
    spec = {
        "targetNamespace": "team-a",
        "images": [
            {"name": "sles", "url": URL, "checksum": SUM.upper()},
            {"name": "default/sles", "url": URL, "checksum": SUM},
            {"name": "default/iso", "url": "https://images.example.com/x.iso", "checksum": SUM},
        ],
    }
    assert [str(image) for image in imports(spec).values()] == ["team-a/sles", "default/sles"]
    assert imports(spec)["team-a", "sles"].checksum == SUM
    assert [problem.partition(":")[0] for problem in import_problems(spec)] == ["spec.images[2].url"]
    assert imports({"targetNamespace": "team-a"}) == {}


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/shadow", "ftp://images.example.com/a", "https://u:secret@images.example.com/a", "https:///a"),
        *("https://images.example.com", "https://images.example.com/a b", "https://images.example.com/a#b", ""),
        *("https://images.example.com/a\n", "javascript:alert(1)", "https://images.example.com\\@x/a", None),
    ],
)
def test_no_other_scheme_and_no_credentials(url: str | None) -> None:
    (problem,) = import_problems({"images": [{"name": "sles", "url": url, "checksum": SUM}]})
    assert problem.startswith("spec.images[0].url: use http or https, and no credentials")
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        *((host, True) for host in ("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "0.0.0.0")),
        *((host, True) for host in ("169.254.169.254", "0", "2130706433", "127.1", "0x7f.0.0.1", "0x7f000001")),
        *((host, True) for host in ("0177.0.0.1", "169.0376.1.1", "[::1]", "[::]", "[0:0::0001]", "[fe80::1]")),
        *(
            (host, True)
            for host in ("[FEBF::1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "127.0.0.1.")
        ),
        *((host, True) for host in ("1.02.3.4", "10.0.0.00", "10.0.00.1.0")),
        *((host, False) for host in ("images.example.com", "10.0.0.1", "172.16.127.1", "192.168.169.254")),
        *(
            (host, False)
            for host in ("169.253.0.1", "128.0.0.1", "[fd00::1]", "[2001:db8::1]", "localhost.example.com")
        ),
        *((host, False) for host in ("127.example.com", "0.example.com", "mylocalhost", "1.2.3.4.example.com")),
    ],
)
def test_url_that_leads_to_the_downloading_host_is_refused(host: str, inside: bool) -> None:
    for url in (f"http://{host}/a.qcow2", f"https://{host}:9500/a.qcow2"):
        assert bool(list(import_problems({"images": [{"name": "a", "url": url, "checksum": SUM}]}))) is inside, url


def test_a_host_of_many_numbers_is_read_in_linear_time() -> None:
    """A pattern that tried each number twice took half a minute."""
    begin = time.process_time()
    assert not bootimage.LOCAL.match("http://1" + ".00" * 21_000 + "x")
    assert time.process_time() - begin < 2


def test_an_image_is_declared_once_with_or_without_its_namespace() -> None:
    images = [{"name": name, "url": URL, "checksum": SUM} for name in ("sles", "team-a/sles", "sles")]
    problems = list(import_problems({"targetNamespace": "team-a", "images": images}))
    assert problems == [
        f"spec.images[{index}].name: team-a/sles is declared twice: remove one of them" for index in (1, 2)
    ]


@given(st.text(min_size=1, max_size=63), st.text(min_size=1, max_size=63))
def test_name_of_the_object_is_valid_and_depends_on_the_namespace(name: str, other: str) -> None:
    objects = [ImageImport(namespace, name, URL, SUM).object_name for namespace in ("a", "b")]
    assert objects[0] != objects[1]
    assert re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", objects[0])
    assert (ImageImport("a", other, URL, SUM).object_name == objects[0]) is (name == other)


def test_an_iso_is_known_by_the_end_of_its_path() -> None:
    assert is_iso("https://images.example.com/a.ISO?token=x")
    assert not is_iso("https://images.example.com/a.qcow2?from=b.iso")


@given(st.dictionaries(st.sampled_from(["name", "url", "checksum"]), st.text(max_size=40) | st.none() | st.integers()))
def test_any_entry_is_an_import_or_a_problem(entry: dict[str, Any]) -> None:
    spec = {"targetNamespace": "team-a", "images": [entry]}
    assert len(imports(spec)) + len(list(import_problems(spec))) == 1


def test_patterns_are_those_of_the_schemas() -> None:
    schemas, local = data.folder("schemas"), bootimage.LOCAL.pattern.replace("\\", "\\\\")
    lookup = json.loads((schemas / "harvestermachine.json").read_text())["$defs"]["imageLookup"]["properties"]
    entry = json.loads((schemas / "harvestercluster.json").read_text())["$defs"]["images"]["items"]["properties"]
    assert lookup["format"]["pattern"] == bootimage.FORMAT.pattern
    assert any(local in rule["rule"] for rule in entry["url"]["x-kubernetes-validations"])
    assert [entry[name]["pattern"] for name in ("name", "url", "checksum")] == [
        *(pattern.pattern for pattern in (bootimage.NAME, bootimage.URL, bootimage.CHECKSUM))
    ]
