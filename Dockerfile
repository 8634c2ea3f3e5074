# One image for workers, the API, migrations and the command line, with pydantic-ai and the SDKs of the model providers.
#
#   docker build --tag runyard .
#   docker buildx build --sbom=true --provenance=true --tag runyard .      with a bill of materials
#
# docs/how-to/compose.md shows how to add your own agents and packages.

ARG PYTHON_IMAGE=python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
# The extras of pyproject.toml to install.
ARG EXTRAS=http,openai,anthropic,google,mcp,otel

FROM ${PYTHON_IMAGE} AS build
ARG EXTRAS
# The bill of materials covers this stage, too.
ARG BUILDKIT_SBOM_SCAN_STAGE=true
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY pyproject.toml README.md LICENSE /src/
COPY runner /src/runner
COPY backends /src/backends
COPY api /src/api
RUN pip wheel --no-deps --wheel-dir /dist /src
# Only wheels: no package is compiled. pip itself stays out of the result.
RUN python -m venv --without-pip /opt/runyard \
    && pip --python /opt/runyard install --only-binary :all: "$(echo /dist/runyard-*.whl)[${EXTRAS}]" \
    && pip --python /opt/runyard check

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="runyard" \
      org.opencontainers.image.description="Agent conversations as durable, distributed jobs on Redis and Postgres." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 1000 runyard \
    && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin runyard
COPY --from=build /opt/runyard /opt/runyard
# The root file system may be read-only; Python writes no bytecode to it.
ENV PATH=/opt/runyard/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /app
# A number, so that Kubernetes can check that it is not root.
USER 1000:1000
ENTRYPOINT ["runyard"]
CMD ["worker"]
