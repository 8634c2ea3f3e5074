"""Answers of web frameworks for the routes of a program of your own. Import the module of your framework."""
