"""What clusters share is what each of them would have alone, byte for byte."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caphv.api.object import Key
from packager.addons.facts import ClusterFacts
from packager.rendering import render_cache
from packager.rendering.options import RenderOptions
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from tests.support.packager.examples import EXAMPLES, cluster

pytestmark = pytest.mark.unit


@cache
def never_sharing(templates: Path | None) -> Renderer:
    renderer = Renderer(RenderOptions(templates))
    vars(renderer)["is_shareable"] = False
    return renderer


def alone(facts: ClusterFacts, templates: Path | None = None) -> Rendered:
    return never_sharing(templates).render_one(facts, {})


def named(facts: ClusterFacts, key: Key) -> ClusterFacts:
    metadata = {**facts.cluster["metadata"], "namespace": key.namespace, "name": key.name}
    return ClusterFacts({**facts.cluster, "metadata": metadata}, facts.harvester_cluster, facts.control_plane)


@pytest.fixture(scope="module")
def warm() -> Renderer:
    """A renderer that has the files of all examples in common."""
    renderer = Renderer()
    renderer.render(EXAMPLES, {})
    assert renderer.is_shareable
    assert None not in renderer.common_files.values()
    return renderer


WORDS = st.sampled_from(
    ["on", "no", "n", "null", "1e3", "0x1", "demo.example", "a" * 63, "x" * 64, "true-1", "t", "es"]
)
NAMES = st.from_regex(r"[a-z0-9][-a-z0-9.]{0,70}[a-z0-9]", fullmatch=True) | WORDS


@given(st.sampled_from(EXAMPLES), NAMES, NAMES)
@settings(max_examples=60)
def test_shared_and_alone_are_the_same(warm: Renderer, facts: ClusterFacts, namespace: str, name: str) -> None:
    one = named(facts, Key(namespace, name))
    shared, own = warm.render_one(one, {}), alone(one)
    assert dict(shared.tree) == dict(own.tree)
    assert (shared.hash, shared.findings) == (own.hash, own.findings)


def test_a_setting_with_the_name_of_the_stand_in_stays_as_it_is() -> None:
    facts = cluster("demo", {"ccm": {"values": {"note": f"see {render_cache.STAND_IN.name}"}}})
    assert dict(Renderer().render_one(facts, {}).tree) == dict(alone(facts).tree)


def test_an_enormous_number_is_rendered() -> None:
    facts = cluster("demo", {"ccm": {"values": {"number": 2**70}}})
    assert str(2**70) in Renderer().render_one(facts, {}).tree["clusters/clusters/demo/ccm/fleet.yaml"].decode()


@pytest.mark.parametrize(
    "expression",
    [
        "{{ cluster.name | upper }}",
        "{{ 'long' if cluster.name | length > 4 else 'short' }}",
        "{% if cluster.name == 'second' %}second{% else %}other{% endif %}",
        "{{ cluster.name[:3] }}",
        "{{ cluster['name'] }}",
        "{{ settings.cluster.name }}",
        "{% set own = cluster %}{{ own.name }}",
        "{% set all = settings %}{{ all.cluster.name }}",
        "{% for target in targets %}{{ target | length }}-{{ target.clusterName }}{% endfor %}",
        "{{ bundle_name('ano' ~ 'ther') }}",
        "{{ bundle_name('another') }}",
        "{{ labels('ccm')['cluster.x-k8s.io/cluster-name'] }}",
        "{{ cluster }}",
    ],
)
def test_templates_that_ask_for_a_name_are_rendered_for_each_cluster(tmp_path: Path, expression: str) -> None:
    file = tmp_path / "csi" / "values.yaml.j2"
    file.parent.mkdir()
    file.write_text(f"note: {expression}\n")
    renderer = Renderer(RenderOptions(templates=tmp_path))
    for name in ("first-one", "second"):
        shared, own = renderer.render_one(cluster(name), {}), alone(cluster(name), templates=tmp_path)
        assert dict(shared.tree) == dict(own.tree)
        assert shared.findings == own.findings
    assert not renderer.is_shareable


def test_a_name_in_the_place_of_a_credential_is_validated_for_each_cluster(tmp_path: Path) -> None:
    file = tmp_path / "csi" / "values.yaml.j2"
    file.parent.mkdir()
    file.write_text("apiToken: {{ cluster.name }}\n")
    renderer = Renderer(RenderOptions(templates=tmp_path))
    assert renderer.render_one(cluster("demo"), {}).ok
    assert {finding.rule for finding in renderer.render_one(cluster("c9r4t7z1q8w2e5u3"), {}).findings} == {
        "no-secrets-in-git"
    }
