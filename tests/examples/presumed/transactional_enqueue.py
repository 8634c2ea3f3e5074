import asyncpg
from django.db import models

pool: asyncpg.Pool
url: str
order_id: str
thread_id: str
run_id: str


class Order(models.Model): ...
