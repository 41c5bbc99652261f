# syntax=docker/dockerfile:1
# Driftline in the versions that constraints.txt has. Every secret comes from the environment at run time; none is in the image.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY schemas schemas
COPY audit audit
COPY analytics analytics
COPY streams streams
COPY service service
COPY driftline driftline
# The page SQL shows the worked examples of this guide.
COPY docs/sql.md docs/sql.md
RUN python -m venv /opt/driftline \
    && /opt/driftline/bin/pip install --no-cache-dir --constraint constraints.txt pip \
    && /opt/driftline/bin/pip install --no-cache-dir --constraint constraints.txt --build-constraint constraints.txt .

FROM python:3.11-slim
# By number, so that an orchestrator can see that it is not root.
RUN useradd --uid 10001 --create-home driftline \
    && install --directory --owner 10001 --group 10001 --mode 0700 /data
COPY --from=build /opt/driftline /opt/driftline
ENV PATH=/opt/driftline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DRIFTLINE_DATABASE=/data/driftline.duckdb
USER 10001
WORKDIR /data
VOLUME /data
ENTRYPOINT ["driftline"]
CMD ["--help"]
