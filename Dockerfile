# One image for the three programs: which of them a container is, its command says.

# The Debian that the tests run on, so that Apertium is the same.
FROM python:3.12-slim-bookworm

# The apertium handler calls these; English to Spanish is the pair that comes with it.
RUN apt-get update \
 && apt-get install -y --no-install-recommends apertium apertium-eng-spa \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /partway

# The dependencies first: they change less often than the code, and Docker keeps them.
COPY pyproject.toml README.md ./
RUN mkdir -p app batch client store worker/handlers \
 && pip install --no-cache-dir --editable .

COPY store store
COPY app app
COPY worker worker
COPY batch batch
# The command `partway`, to try a deployment from inside it.
COPY client client

# Nothing here needs the rights of root.
RUN useradd --system --no-create-home partway
USER partway
