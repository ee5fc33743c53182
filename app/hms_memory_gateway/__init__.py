"""The gateway: Claude's memory tool over HTTP, one store for each namespace."""
