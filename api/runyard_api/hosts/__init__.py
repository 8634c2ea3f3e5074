"""Responses with event streams, for the routes of your own program. Import the module of your web framework."""
