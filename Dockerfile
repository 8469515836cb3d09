# docker build -t mirror-pipeline .     See docs/deploy.md. Debian's own Python 3.11 and Java 17: nothing but Debian and the locked packages.
FROM debian:bookworm-slim AS base
# Without versions: an image that is built again has Debian's security updates.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 openjdk-17-jre-headless ca-certificates \
 && rm -rf /var/lib/apt/lists/*

FROM base AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && python3 -m venv /opt/mirror
COPY requirements.lock /src/requirements.lock
RUN /opt/mirror/bin/pip install --no-cache-dir --require-hashes -r /src/requirements.lock
COPY pyproject.toml README.md LICENSE /src/
COPY dagster_home /src/dagster_home
COPY resources /src/resources
COPY mirror_pipeline /src/mirror_pipeline
RUN /opt/mirror/bin/pip install --no-cache-dir --no-deps --no-build-isolation /src
# A layer keeps times in whole seconds, and the class archive fits jars of the same times only.
RUN find /opt/mirror -name '*.jar' -exec touch --date="$(date --iso-8601=seconds)" {} +
# Spark's jars, its class archive and machine code are part of the image: at run time nothing is fetched, and the root file system is read-only.
ENV MIRROR_CACHE=/opt/mirror/cache
RUN /opt/mirror/bin/python -m mirror_pipeline.execution.jars delta \
 && /opt/mirror/bin/python -m mirror_pipeline.execution.class_archive \
 && /opt/mirror/bin/python -c "import mirror_pipeline.kafka.records.merge_native" \
 && chmod -R go=u-w /opt/mirror

FROM base
COPY --from=build /opt/mirror /opt/mirror
RUN install --directory --owner=12345 --group=12345 /data
ENV PATH=/opt/mirror/bin:/usr/local/bin:/usr/bin:/bin MIRROR_CACHE=/opt/mirror/cache MIRROR_STATE=/data/state HOME=/data PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes sees that it is not root; it has no name and no home but the volume.
USER 12345:12345
WORKDIR /data
VOLUME /data
EXPOSE 3000 9308
ENTRYPOINT ["mirror"]
CMD ["run", "--config", "/etc/mirror/mirror.yaml"]
