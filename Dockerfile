# One image for the three programs; the command of a container says which one it runs.

# The Debian that the tests use, so that Apertium is the same.
FROM python:3.12-slim-bookworm

# The apertium handler calls these. English to Spanish is the pair that comes with it.
RUN apt-get update \
 && apt-get install -y --no-install-recommends apertium apertium-eng-spa \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /source

# The dependencies first: they change less often than the code, and Docker keeps this layer.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir partway && touch partway/__init__.py \
 && pip install --no-cache-dir '.[server]'

# The package is a folder of links to these.
COPY store store
COPY app app
COPY worker worker
COPY batch batch
COPY client client
COPY partway partway
RUN pip install --no-cache-dir --no-deps --force-reinstall .

# Nothing here needs the rights of root. A handler of yours goes into this folder.
RUN useradd --system --no-create-home partway
USER partway
WORKDIR /partway
