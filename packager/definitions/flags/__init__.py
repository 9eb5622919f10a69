"""The flags of `caphv generate`, most of them of the old generator, as fields of a definition.

The order of all flags is that of the questions in the interactive mode, and of the fields in a
definition that flags describe.
"""

from packager.definitions.flags import cluster, harvester, machines, network, services
from packager.definitions.flags.model import EACH, KUBERNETES_VERSION, Flag

FLAGS = (
    *cluster.FLAGS,
    *machines.FLAGS,
    *harvester.FLAGS,
    *network.FLAGS,
    *services.FLAGS,
)

__all__ = ["EACH", "FLAGS", "KUBERNETES_VERSION", "Flag"]
