# Two images of one distribution: `operator` without torch, `worker` on the engine's own image.
#   docker build --target operator -t rlfleet/operator:0.1.0 .
#   docker build --target worker -t rlfleet/worker:0.1.0 .

FROM python:3.11-slim AS wheel
WORKDIR /src
COPY requirements/build.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY worker worker
RUN pip wheel --no-build-isolation --no-deps --no-cache-dir --wheel-dir /wheel .

FROM python:3.11-slim AS operator
# PYTHONSAFEPATH: the working folder is never a place to import from.
ENV PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TZ=UTC
COPY requirements/operator.txt /tmp/operator.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/operator.txt && rm /tmp/operator.txt
RUN --mount=from=wheel,source=/wheel,target=/wheel pip install --no-cache-dir --no-deps /wheel/*.whl
USER 1000:1000
ENTRYPOINT ["python3", "-m", "fleet_operator"]

FROM vllm/vllm-openai:v0.32.0 AS worker
ENV PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TZ=UTC
# --no-deps: torch, vLLM and all the rest are the base image's, in the versions it was tested with.
RUN --mount=from=wheel,source=/wheel,target=/wheel pip install --no-cache-dir --no-deps /wheel/*.whl
USER 1000:1000
ENTRYPOINT ["python3", "-m", "fleet_worker"]
