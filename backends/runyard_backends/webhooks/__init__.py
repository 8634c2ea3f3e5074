"""Sending of webhooks over HTTP."""
