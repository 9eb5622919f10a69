# syntax=docker/dockerfile:1
# The image of caphv, for linux/amd64 and linux/arm64:
#   docker buildx build --platform linux/amd64,linux/arm64 --tag IMAGE --push .

ARG PYTHON=3.13-slim-bookworm

FROM python:${PYTHON} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /src
# Dependencies first: they change more seldom than the code. Only wheels with the hashes of the lock are taken, so that
# nothing is compiled, and all of them, whatever the base image has.
COPY pyproject.toml requirements.lock ./
COPY release/__init__.py release/lock.py release/
RUN python -m release.lock > /requirements.txt \
    && python -m pip install --no-cache-dir --no-compile --only-binary=:all: --require-hashes --no-deps \
        --ignore-installed --prefix=/opt/caphv --requirement=/requirements.txt
COPY . .
RUN python -m release.lock build hatchling > /build-requirements.txt \
    && python -m pip install --no-cache-dir --no-compile --only-binary=:all: --require-hashes --no-deps \
        --target=/build --requirement=/build-requirements.txt \
    && PYTHONPATH=/build python -m build --wheel --no-isolation --outdir=/dist . \
    && python -m pip install --no-cache-dir --no-compile --no-deps --no-index --ignore-installed \
        --prefix=/opt/caphv /dist/caphv-*.whl

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="caphv" \
      org.opencontainers.image.description="Cluster API provider for Harvester" \
      org.opencontainers.image.source="https://github.com/rancher-sandbox/cluster-api-provider-harvester" \
      org.opencontainers.image.licenses="Apache-2.0"
# The packager commits with git, and reaches remotes by ssh, too, which wants to know its user.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 caphv \
    && useradd --uid 65532 --gid caphv --no-create-home --home-dir /tmp --shell /usr/sbin/nologin caphv
COPY --from=build /opt/caphv /usr/local
# The root file system may be read-only: no byte code is written, and only /tmp is written to.
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["caphv"]
CMD ["run"]
