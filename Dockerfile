# The images of all programs: docker build --target hub|spoke|hollow -t muster/<target> .
# They share every layer but the last, so a machine that has one has nearly all of the others.

FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
RUN python -m venv /build && python -m venv --without-pip /opt/muster
COPY requirements-tracing.lock requirements-build.lock ./
# The dependencies are a layer of their own: they change less often than the code. Those of traces, an extra, are among them.
RUN /build/bin/pip install --require-hashes -r requirements-build.lock \
 && /build/bin/pip --python /opt/muster/bin/python install --require-hashes -r requirements-tracing.lock
COPY pyproject.toml README.md LICENSE ./
COPY machinery machinery
COPY hub hub
COPY hubctl hubctl
COPY spoke spoke
COPY hollow hollow
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /build/bin/pip --python /opt/muster/bin/python install --no-deps /wheels/*.whl

FROM python:3.11-slim-bookworm AS programs
LABEL org.opencontainers.image.title="Muster" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 muster \
 && useradd --uid 10001 --gid muster --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin muster \
 && install -d -o muster -g muster -m 0700 /var/lib/muster /keys /clusters /bootstrap
COPY --from=build /opt/muster /opt/muster
ENV PATH=/opt/muster/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A new volume takes over owner and mode of the directory that it is mounted on: all but the first are for docker-compose.yml.
# By number, so that Kubernetes can verify runAsNonRoot. The root file system may be read-only: only data and /tmp are written.
USER 10001:10001

FROM programs AS spoke
ENTRYPOINT ["spoke"]
CMD ["run"]

FROM programs AS hollow
ENTRYPOINT ["hollow"]
CMD ["serve"]

FROM programs AS hub
ENV HUB_DATA_DIR=/var/lib/muster/hub
VOLUME /var/lib/muster
EXPOSE 8443 6443
ENTRYPOINT ["hub"]
CMD ["serve"]
