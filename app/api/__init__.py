"""Programs call Partway over HTTP: routes, bodies, keys, limits and the OpenAPI document."""
