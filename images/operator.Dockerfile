# The operator: no JAX in it.
# docker build -f images/operator.Dockerfile . (the local cluster passes a BASE of its own)
ARG BASE=python:3.11-slim

FROM ${BASE} AS dependencies
# Dependencies from pyproject.toml, in a layer below the code, so that a code change does not rebuild it.
COPY pyproject.toml /src/
RUN python3 -m venv /opt/atoll \
    && /opt/atoll/bin/python -c 'import tomllib; p = tomllib.load(open("/src/pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *p["optional-dependencies"]["operator"], sep="\n")' > /src/requirements.txt \
    && /opt/atoll/bin/pip install --no-cache-dir --disable-pip-version-check --quiet -r /src/requirements.txt

FROM dependencies AS wheel
RUN /opt/atoll/bin/pip install --no-cache-dir --disable-pip-version-check --quiet hatchling
COPY README.md LICENSE NOTICE /src/
COPY operator /src/operator
COPY runtime /src/runtime
COPY local /src/local
COPY cli /src/cli
RUN /opt/atoll/bin/pip wheel --no-deps --no-build-isolation --no-index --disable-pip-version-check --quiet --wheel-dir /wheels /src

FROM dependencies
COPY --from=wheel /wheels /wheels
RUN /opt/atoll/bin/pip install --no-deps --no-index --no-cache-dir --disable-pip-version-check --quiet /wheels/*.whl
ENV PATH=/opt/atoll/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
CMD ["python", "-m", "atoll_operator"]
