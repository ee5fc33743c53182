# The gateway and its engine in one image: see deploy/image/README.md.
ARG RUST=rust:1.95-slim-trixie
ARG PYTHON=python:3.13-slim-trixie

# The engine changes with its version alone, so this layer of minutes is built once.
FROM ${RUST} AS engine
RUN cargo install holographic-memory --version 0.6.3 --features mcp,security --bin hms-mcp --locked --root /engine

FROM ${PYTHON} AS gateway
RUN python -m venv /uv && /uv/bin/pip install --no-cache-dir uv==0.13.9
ENV UV_PROJECT_ENVIRONMENT=/opt/gateway \
    UV_COMPILE_BYTECODE=1 \
    UV_NO_CACHE=1 \
    UV_PYTHON_DOWNLOADS=never \
    UV_SYSTEM_CERTS=1
WORKDIR /source
COPY pyproject.toml uv.lock ./
RUN /uv/bin/uv sync --frozen --no-dev --extra gateway --extra otel --no-install-project
COPY README.md LICENSE ./
COPY app app
RUN /uv/bin/uv sync --frozen --no-dev --extra gateway --extra otel --no-editable

FROM ${PYTHON}
# The volume takes its owner and its mode from this folder.
RUN apt-get update \
 && apt-get install -y --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -m 0700 -o 10001 -g 10001 /data
COPY --from=engine /engine/bin/hms-mcp /usr/local/bin/hms-mcp
COPY --from=gateway /opt/gateway /opt/gateway
COPY deploy/image/healthcheck.py /opt/healthcheck.py
ENV PATH=/opt/gateway/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    HMS_MCP_BIN=/usr/local/bin/hms-mcp \
    HMS_GATEWAY_DATA_DIR=/data \
    HMS_GATEWAY_HOST=0.0.0.0
USER 10001:10001
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-I", "/opt/healthcheck.py"]
# Memory is for its owner alone, whatever runs: the engine by itself would let others read it.
ENTRYPOINT ["tini", "--", "sh", "-c", "umask 077 && exec \"$@\"", "sh"]
CMD ["hms-memory-gateway"]
