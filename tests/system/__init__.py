"""Several programs together, real processes, deployment files and the tools of proof."""
