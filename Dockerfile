# Built on the first image, run on the second: no compiler, no source, no index in what is shipped.
# The versions of Python and Debian are those that .ci/run tests with.

FROM python:3.11-slim-bookworm AS build

RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc=4:12.* libc6-dev=2.36-* \
 && rm -rf /var/lib/apt/lists/*

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

WORKDIR /build
COPY requirements.lock requirements-build.lock ./
RUN python -m venv /opt/netreeve \
 && /opt/netreeve/bin/python -m pip install --require-hashes -r requirements.lock \
 && python -m pip install --require-hashes -r requirements-build.lock

COPY pyproject.toml setup.py MANIFEST.in README.md CHANGELOG.md LICENSE ./
COPY ext ext
COPY src src
# The linker strips the extensions. pip has done its work then: nothing is installed while it runs.
RUN LDFLAGS=-Wl,--strip-all python -m pip wheel --no-deps --no-build-isolation --wheel-dir . . \
 && /opt/netreeve/bin/python -m pip install --no-deps ./*.whl \
 && /opt/netreeve/bin/python -m pip uninstall --yes pip setuptools


FROM python:3.11-slim-bookworm

LABEL org.opencontainers.image.title="netreeve" \
      org.opencontainers.image.description="Node network agent: links, endpoint routes, ordered status" \
      org.opencontainers.image.licenses="Apache-2.0"

RUN apt-get update \
 && apt-get install -y --no-install-recommends tini=0.19.* \
 && rm -rf /var/lib/apt/lists/*

COPY --from=build /opt/netreeve /opt/netreeve
ENV PATH=/opt/netreeve/bin:$PATH

# Needs the node's network namespace and CAP_NET_ADMIN; keeps its journal in /var/lib/netreeve.
ENTRYPOINT ["tini", "--", "netreeve"]
CMD ["run"]
