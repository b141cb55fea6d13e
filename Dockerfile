# One image for the three programs: which of them a container is, its command says.

# The Debian that the tests run on, so that Apertium is the same.
FROM python:3.12-slim-bookworm

# The apertium handler calls these; English to Spanish is the pair that comes with it.
RUN apt-get update \
 && apt-get install -y --no-install-recommends apertium apertium-eng-spa \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /partway

# The dependencies first, beside an empty package: they change less often than the code, and Docker
# keeps them.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir partway && touch partway/__init__.py \
 && pip install --no-cache-dir '.[server]' \
 && rm -r partway

COPY store store
COPY app app
COPY worker worker
COPY batch batch
# `partway send`, to try a deployment from inside it.
COPY client client
# The package, which links to the folders above.
COPY partway partway
RUN pip install --no-cache-dir --no-deps --force-reinstall .

# Nothing here needs the rights of root.
RUN useradd --system --no-create-home partway
USER partway
