"""Shared services: settings, logging, metrics, retries, optional packages."""
