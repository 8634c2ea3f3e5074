"""A Django site in one file: an order and the run that confirms it are committed together.

runyard dev app:app -- python web.py runserver --noreload 8080

curl -d item="a blue cup" http://127.0.0.1:8080/orders
curl http://127.0.0.1:8080/orders/1
"""

from __future__ import annotations

import os
import sys
from functools import cache
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.views.decorators.http import require_GET, require_POST

from runyard import Client, SyncClient

POSTGRES, REDIS = os.environ["RUNYARD_POSTGRES_URL"], os.environ["RUNYARD_REDIS_URL"]
url = urlsplit(POSTGRES)

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this example",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path[1:],
            "USER": unquote(url.username or ""),
            "PASSWORD": unquote(url.password or ""),
            "HOST": url.hostname,
            "PORT": url.port,
        }
    },
)
django.setup()


class Order(models.Model):
    item: models.CharField[str, str] = models.CharField(max_length=200)

    class Meta:
        app_label = "orders"


@cache
def client() -> SyncClient:
    """Return the client of this process. It keeps its connections, and every thread may use it."""
    return Client.sync(POSTGRES, redis=REDIS)


@require_POST
@transaction.atomic
def place(request: HttpRequest) -> JsonResponse:
    """Store an order with its confirmation in one transaction: both exist or neither."""
    order = Order.objects.create(item=request.POST["item"])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT runyard.accept(%s, %s, run_id => %s)",
            [f"order-{order.pk}", f"Order {order.pk}: {order.item}.", f"confirm-{order.pk}"],
        )
    if "fail" in request.POST:  # to see the rollback
        raise ValueError("the payment was declined")
    return JsonResponse({"order": order.pk}, status=201)


@require_GET
def order(request: HttpRequest, pk: int) -> JsonResponse:
    """Wait up to five seconds for the run. Return the order, the run's status and, if it completed, the agent's text."""
    order = get_object_or_404(Order, pk=pk)
    handle = client().handle(f"order-{pk}", f"confirm-{pk}")
    try:
        result = handle.result(timeout=5)
    except TimeoutError:
        return JsonResponse({"item": order.item, "status": str(handle.status())})
    return JsonResponse({"item": order.item, "status": str(result.status), "words": result.text if result.ok else None})


urlpatterns = [path("orders", place), path("orders/<int:pk>", order)]

if __name__ == "__main__":
    with connection.schema_editor() as schema:
        if Order._meta.db_table not in connection.introspection.table_names():
            schema.create_model(Order)
    execute_from_command_line(sys.argv)
