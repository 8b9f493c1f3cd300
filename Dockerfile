# syntax=docker/dockerfile:1
# One image recipe for all services: docker build --build-arg SERVICE=bookie -t duramen-bookie .
# SERVICE: bookie, sequencer, writeproxy or readproxy. The service's own flags follow `docker run IMAGE`.

ARG PYTHON_IMAGE=python:3.11-slim

# --- Every locked package as a wheel, checked by hash; the same layer for all services ---------------
FROM ${PYTHON_IMAGE} AS wheels
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements.lock ./
# setuptools and wheel first: they build PySpark, which is published as source only (see Makefile).
RUN awk '/^(setuptools|wheel)==/ { on = 1 } on { print } !/\\$/ { on = 0 }' requirements.lock > build.lock \
    && pip install --no-deps --require-hashes -r build.lock \
    && pip wheel --no-deps --require-hashes --no-build-isolation --wheel-dir /wheels -r requirements.lock

# --- The service with only what its extra needs, out of those wheels --------------------------------
FROM wheels AS build
RUN pip install --no-index --find-links /wheels hatchling
COPY pyproject.toml README.md LICENSE ./
COPY libs libs
COPY services services
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .
ARG SERVICE
RUN test -n "${SERVICE}" || { echo "--build-arg SERVICE=bookie|sequencer|writeproxy|readproxy" >&2; exit 1; } \
    && python -m venv --without-pip /opt/duramen \
    && pip --python /opt/duramen/bin/python install --no-index --find-links /wheels "duramen[${SERVICE}]" \
    # An exec-form ENTRYPOINT cannot expand SERVICE, and a shell would not pass signals on.
    && ln -s "duramen-${SERVICE}" /opt/duramen/bin/entrypoint

# --- What runs: no pip use, no compiler, no root -----------------------------------------------------
FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 duramen \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin duramen \
    && install -d -o 10001 -g 10001 /data
COPY --from=build /opt/duramen /opt/duramen
ENV PATH=/opt/duramen/bin:${PATH} PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Numeric, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 10001:10001
WORKDIR /data
ENTRYPOINT ["/opt/duramen/bin/entrypoint"]
