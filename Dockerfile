# The images of the programs, each with that program's packages alone: `make images` builds those of hub and spoke.

FROM python:3.13-slim-trixie AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY requirements-build.lock ./
RUN python -m venv /build && python -m venv --without-pip /opt/muster \
 && /build/bin/pip install --require-hashes -r requirements-build.lock

FROM build AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY machinery machinery
COPY hub hub
COPY hubctl hubctl
COPY spoke spoke
COPY hollow hollow
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# The dependencies are a layer of their own: they change less often than the code. Those of traces, an extra, are among them.
FROM build AS hub-dependencies
COPY requirements-hub.lock ./
RUN /build/bin/pip --python /opt/muster/bin/python install --require-hashes -r requirements-hub.lock

FROM hub-dependencies AS hub-packages
COPY --from=wheel /wheels /wheels
RUN /build/bin/pip --python /opt/muster/bin/python install --no-deps /wheels/*.whl \
 && for other in spoke hollow; do rm -r /opt/muster/bin/"$other" /opt/muster/lib/python3*/site-packages/"$other"; done

FROM build AS spoke-packages
COPY requirements-spoke.lock ./
RUN /build/bin/pip --python /opt/muster/bin/python install --require-hashes -r requirements-spoke.lock
COPY --from=wheel /wheels /wheels
RUN /build/bin/pip --python /opt/muster/bin/python install --no-deps /wheels/*.whl \
 && for other in hub hubctl hollow; do rm -r /opt/muster/bin/*"$other" /opt/muster/lib/python3*/site-packages/"$other"; done

# Hollow clusters, for docker-compose.yml, need a part of the hub's dependencies. `hollow load` uses parts of the agent.
FROM hub-dependencies AS hollow-packages
COPY --from=wheel /wheels /wheels
RUN /build/bin/pip --python /opt/muster/bin/python install --no-deps /wheels/*.whl \
 && for other in hub hubctl; do rm -r /opt/muster/bin/*"$other" /opt/muster/lib/python3*/site-packages/"$other"; done

FROM python:3.13-slim-trixie AS programs
LABEL org.opencontainers.image.title="Muster" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 muster \
 && useradd --uid 10001 --gid muster --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin muster \
 && install -d -o muster -g muster -m 0700 /var/lib/muster /keys /clusters /bootstrap
ENV PATH=/opt/muster/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A new volume takes over owner and mode of the directory that it is mounted on: all but the first are for docker-compose.yml.
# By number, so that Kubernetes can verify runAsNonRoot. The root file system may be read-only: only data and /tmp are written.
USER 10001:10001

FROM programs AS spoke
COPY --from=spoke-packages /opt/muster /opt/muster
ENTRYPOINT ["spoke"]
CMD ["run"]

FROM programs AS hollow
COPY --from=hollow-packages /opt/muster /opt/muster
ENTRYPOINT ["hollow"]
CMD ["serve"]

FROM programs AS hub
COPY --from=hub-packages /opt/muster /opt/muster
ENV HUB_DATA_DIR=/var/lib/muster/hub
ENV HUBCTL_KUBECONFIG=/var/lib/muster/hub/admin.kubeconfig
VOLUME /var/lib/muster
EXPOSE 8443 6443
ENTRYPOINT ["hub"]
CMD ["serve"]
