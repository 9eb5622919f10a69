"""A user's own kubeconfig, which may name files and credential plugins, span several files, or use plain HTTP.

Not part of `caphv.runtime.kubeconfig`, whose readers never need the loaders of the package.
"""

from __future__ import annotations

from caphv.runtime.kubernetespackage import Configuration, RESTClientObject, kube_config
from caphv.runtime.proxy import environment_proxy
from caphv.runtime.transport import Connection


async def connection(kubeconfig: str = "", context: str = "") -> Connection:
    """Load a file, or what `KUBECONFIG` names; `context` overrides its current context.

    Credentials are refreshed as the kubeconfig says. Raises whatever the `kubernetes` package raises.
    """
    configuration = Configuration()
    await kube_config().load_kube_config(kubeconfig or None, context or None, configuration)

    async def authorization() -> str:
        token = await configuration.get_api_key_with_prefix("BearerToken") or ""
        return token if " " in token or not token else f"Bearer {token}"

    tls = RESTClientObject(configuration).ssl_context
    server = configuration.host.rstrip("/")
    proxy = configuration.proxy or environment_proxy(server) or None
    return Connection(server, tls, authorization, proxy, configuration.tls_server_name)
