# What runs in the pods of a run: the learner, the syncer and the evaluator, chosen by the pod's command.
# docker build -f images/runtime.Dockerfile . (the local cluster passes a BASE of its own, and EXTRAS without libtpu)
ARG BASE=python:3.11-slim

FROM ${BASE} AS dependencies
ARG EXTRAS=runtime,tpu
# In a layer below the code, so that a code change does not rebuild it. Compiled code names no time of a file.
ENV PYTHONHASHSEED=0
COPY images/${EXTRAS}.lock /src/requirements.txt
RUN python3 -m venv /opt/atoll \
    && /opt/atoll/bin/pip install --require-hashes --no-deps --no-compile --no-cache-dir --disable-pip-version-check --quiet -r /src/requirements.txt \
    && /opt/atoll/bin/python -m compileall -qq -f --invalidation-mode unchecked-hash /opt/atoll/lib

FROM dependencies AS wheel
COPY images/build.lock /src/build.txt
RUN /opt/atoll/bin/pip install --require-hashes --no-deps --no-cache-dir --disable-pip-version-check --quiet -r /src/build.txt
COPY pyproject.toml README.md LICENSE NOTICE /src/
COPY operator /src/operator
COPY runtime /src/runtime
COPY local /src/local
COPY cli /src/cli
RUN /opt/atoll/bin/pip wheel --no-deps --no-build-isolation --no-index --disable-pip-version-check --quiet --wheel-dir /wheels /src

FROM dependencies
COPY --from=wheel /wheels /wheels
RUN /opt/atoll/bin/pip install --no-deps --no-index --no-compile --no-cache-dir --disable-pip-version-check --quiet /wheels/*.whl \
    && /opt/atoll/bin/python -m compileall -qq -f --invalidation-mode unchecked-hash /opt/atoll/lib/python3*/site-packages/atoll_*
ENV PATH=/opt/atoll/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=random
USER 65532:65532
CMD ["python", "-m", "atoll_runtime.learner"]
