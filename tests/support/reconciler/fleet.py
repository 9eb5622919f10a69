"""Labels of Fleet clusters."""

from __future__ import annotations

from tests.support.rancher import AUTO_IMPORT

LABELS = {AUTO_IMPORT: "true", "cni": "calico", "csi": "harvester", "cloud-config": "secret"}
