"""Kinds of Fleet and of Helm's controller that only tests read and write."""

from caphv.api.object import Resource
from caphv.api.resources import FLEET_GROUP

FLEET_BUNDLES = Resource(FLEET_GROUP, "v1alpha1", "bundles", "Bundle")
HELM_CHARTS = Resource("helm.cattle.io", "v1", "helmcharts", "HelmChart")
HELM_CHART_CONFIGS = Resource("helm.cattle.io", "v1", "helmchartconfigs", "HelmChartConfig")
