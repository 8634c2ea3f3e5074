"""The calls of :class:`runner.client.Client`, by subject: runs, forks, threads."""
