# One image for every service of docker-compose.yml. Built from the same locks as `make env`.
ARG PYTHON=python:3.12.14-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254

FROM ${PYTHON} AS build
WORKDIR /luthier
COPY requirements requirements
COPY tools tools
RUN python tools/environment.py runtime build
COPY package.json package-lock.json tsconfig.json ./
COPY static static
COPY jobs/log_levels.json jobs/
RUN .venv/bin/python tools/front_end.py
RUN rm -rf node_modules && python tools/environment.py runtime

# Where files are removed before the image has them: they would stay readable in a layer below.
FROM ${PYTHON} AS code
WORKDIR /luthier
COPY portal portal
ARG WITH_DEMO=no
RUN [ "$WITH_DEMO" = yes ] || rm portal/demo.py portal/management/commands/demo.py

FROM ${PYTHON}
RUN useradd --create-home --uid 10001 luthier \
    && install -d -o luthier -g luthier -m 0700 /data /data/datasets /run/luthier
WORKDIR /luthier
COPY manage.py pyproject.toml LICENSE ./
COPY --from=build /luthier/.venv .venv
COPY --from=build /luthier/static static
COPY templates templates
COPY tenants tenants
COPY jobs jobs
COPY gpu_scheduler gpu_scheduler
COPY learner_agent learner_agent
# Where learners' pods on Kubernetes copy the agent from: this image can be their KUBE_AGENT_IMAGE.
COPY learner_agent /agent/learner_agent
COPY --from=code /luthier/portal portal
COPY examples examples
COPY docs docs
ENV PATH=/luthier/.venv/bin:$PATH PYTHONUNBUFFERED=1 MALLOC_ARENA_MAX=2 \
    LUTHIER_DATA=/data XDG_RUNTIME_DIR=/run/luthier
RUN python -m compileall -q manage.py tenants jobs gpu_scheduler learner_agent portal /agent
USER luthier
EXPOSE 8000
CMD ["python", "-m", "portal.web", "--host", "0.0.0.0"]
