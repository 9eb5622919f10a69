"""Run the packager's process of `caphv run --with-packager`, whose argument is JSON settings."""

from __future__ import annotations

import logging
import sys

import orjson

log = logging.getLogger("caphv")


def main() -> None:
    """Run with the given settings.

    Exit status: 0 stopped on request, 1 could not start or continue.
    """
    from caphv.runtime import eventloop, logs
    from caphv.runtime.errors import ApiError
    from caphv.runtime.kubeconfig import KubeconfigError
    from caphv.runtime.manager import LeaseLost
    from packager.controller.childprocess import serve_child
    from packager.controller.config import PackagerFlags
    from webhooks import crossobject

    settings = PackagerFlags(**orjson.loads(sys.argv[1]))  # noqa: TID251 - our own parent process
    logs.configure(settings.log_level, settings.log_format)
    try:
        with settings.resolve(crossobject.check) as options:
            eventloop.run(serve_child(options))
    except (LeaseLost, KubeconfigError, ApiError, ValueError, OSError) as error:
        log.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
