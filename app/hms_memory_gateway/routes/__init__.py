"""The routes, one module for each group; each body is a few lines over the layers below."""
