# docker build -t mirror-pipeline .     See docs/deploy.md. Debian's own Python 3.11 and Java 17: nothing but Debian and the locked packages.
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv openjdk-17-jre-headless ca-certificates
RUN python3 -m venv /opt/mirror
COPY requirements.lock /src/requirements.lock
RUN /opt/mirror/bin/pip install --no-cache-dir --require-hashes -r /src/requirements.lock
COPY pyproject.toml README.md LICENSE /src/
COPY dagster_home /src/dagster_home
COPY resources /src/resources
COPY mirror_pipeline /src/mirror_pipeline
RUN /opt/mirror/bin/pip install --no-cache-dir --no-deps --no-build-isolation /src
# Spark's jars, its class archive and machine code are part of the image: at run time nothing is fetched, and the root file system is read-only.
ENV MIRROR_CACHE=/opt/mirror/cache
RUN /opt/mirror/bin/python -m mirror_pipeline.execution.jars delta \
 && /opt/mirror/bin/python -m mirror_pipeline.execution.class_archive \
 && /opt/mirror/bin/python -c "import mirror_pipeline.kafka.records.merge_native" \
 && chmod -R go=u-w /opt/mirror

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 openjdk-17-jre-headless ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/mirror /opt/mirror
ENV PATH=/opt/mirror/bin:/usr/local/bin:/usr/bin:/bin MIRROR_CACHE=/opt/mirror/cache HOME=/data PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes sees that it is not root; it has no name and no home but the volume.
USER 12345:12345
WORKDIR /data
VOLUME /data
EXPOSE 3000 9308
ENTRYPOINT ["mirror"]
