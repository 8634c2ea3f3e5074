"""Send webhooks over HTTP."""
