# syntax=docker/dockerfile:1
# The images of caphv, for linux/amd64 and linux/arm64. The controller has no shell, Git, SSH or package manager:
#   docker buildx build --platform linux/amd64,linux/arm64 --target controller --tag IMAGE:TAG --push .
# The packager commits with Git. Its image can do all that the controller's can, and is built without --target, too:
#   docker buildx build --platform linux/amd64,linux/arm64 --target packager --tag IMAGE:TAG-packager --push .

# RELEASE.md says how to update the digest.
ARG PYTHON=3.13-slim-bookworm@sha256:01f42367a0a94ad4bc17111776fd66e3500c1d87c15bbd6055b7371d39c124fb

FROM python:${PYTHON} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /src
# Dependencies first: they change more seldom than the code. Only wheels with the hashes of the lock are taken, so that
# nothing is compiled, and all of them, whatever the base image has.
COPY pyproject.toml requirements.lock ./
COPY tools/release/__init__.py tools/release/lock.py tools/release/
RUN python -m tools.release.lock > /requirements.txt \
    && python -m pip install --no-cache-dir --no-compile --only-binary=:all: --require-hashes --no-deps \
        --ignore-installed --prefix=/opt/caphv --requirement=/requirements.txt
COPY . .
RUN python -m tools.release.lock build hatchling > /build-requirements.txt \
    && python -m pip install --no-cache-dir --no-compile --only-binary=:all: --require-hashes --no-deps \
        --target=/build --requirement=/build-requirements.txt \
    && PYTHONPATH=/build python -m build --wheel --no-isolation --outdir=/dist . \
    && python -m pip install --no-cache-dir --no-compile --no-deps --no-index --ignore-installed \
        --prefix=/opt/caphv /dist/caphv-*.whl

# The interpreter, its packages, and the libraries and certificates that they need.
FROM build AS rootfs
RUN python -m tools.release.rootfs /rootfs /opt/caphv

FROM scratch AS controller-bill
COPY --from=rootfs /rootfs/usr/share/caphv/sbom.cdx.json /

FROM scratch AS controller
LABEL org.opencontainers.image.title="caphv" \
      org.opencontainers.image.description="Cluster API provider for Harvester" \
      org.opencontainers.image.source="https://github.com/rancher-sandbox/cluster-api-provider-harvester" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=rootfs /rootfs /
# The root file system may be read-only: no byte code is written, and only /tmp is written to.
ENV PATH=/usr/local/bin HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["caphv"]
CMD ["run"]

FROM python:${PYTHON} AS git
# The packager commits with git, verifies signatures with gpg, and reaches remotes by ssh, which wants to know its user.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git gpg openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 caphv \
    && useradd --uid 65532 --gid caphv --no-create-home --home-dir /tmp --shell /usr/sbin/nologin caphv
COPY --from=build /opt/caphv /usr/local

FROM git AS packages
WORKDIR /src
COPY tools/release tools/release
RUN python -m tools.release.sbom > /sbom.cdx.json

FROM scratch AS packager-bill
COPY --from=packages /sbom.cdx.json /

FROM git AS packager
LABEL org.opencontainers.image.title="caphv-packager" \
      org.opencontainers.image.description="Cluster API provider for Harvester, with Git for the packager" \
      org.opencontainers.image.source="https://github.com/rancher-sandbox/cluster-api-provider-harvester" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=packages /sbom.cdx.json /usr/share/caphv/sbom.cdx.json
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["caphv"]
CMD ["run"]
