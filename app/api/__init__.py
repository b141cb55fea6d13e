"""Programs call Partway over HTTP, with routes, bodies, keys, limits and an OpenAPI document."""
