"""One machine stands in for a deployment: a private database server, and the programs around it."""
