"""The client: the calls that a web backend makes to a deployment."""
