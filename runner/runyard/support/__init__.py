"""Shared services: settings, logging, metrics, retries and optional packages."""
