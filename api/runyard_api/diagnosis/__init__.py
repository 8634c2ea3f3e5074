"""The examination of a deployment, for the command line and for the HTTP API."""
