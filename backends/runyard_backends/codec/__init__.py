"""The stored forms of messages, HITL requests, threads and other values in SQL stores."""
