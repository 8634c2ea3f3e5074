"""A support agent that refunds orders. A human approves each refund, and the payment service executes each refund once.

runyard dev app:app
runyard prompt t1 "Order A-7 arrived broken. Please refund it." --stream
runyard respond t1 --approve --stream
"""

import os

import httpx
from pydantic_ai import Agent, ModelRetry

from runyard import App, current_step, default_model
from runyard.testing import ModelRequested, ScriptedModel, call

ORDERS = {"A-7": {"item": "a cup", "cents": 1290}, "B-2": {"item": "a bicycle", "cents": 64900}}
PAYMENTS_URL = os.environ.get("PAYMENTS_URL")  # your payment service; without one, no money is paid
payments = httpx.AsyncClient(base_url=PAYMENTS_URL) if PAYMENTS_URL else None


def script(request: ModelRequested):
    """Return the reply of the scripted model, which is used if no provider's key is set."""
    order = next((name for name in ORDERS if name in request.prompt), None)
    if order is None:
        return "Which order is it about? Please give me its number."
    if "refund" in request.results:
        return f"{request.results['refund']} It will be on your account in two or three days."
    if "look_up" in request.results:
        return ["I am sorry to hear that.", call("refund", order=order, cents=ORDERS[order]["cents"])]
    return call("look_up", order=order)


agent = Agent(
    default_model() or ScriptedModel(script, delay=0.02),
    instructions="You are the support of a shop. Look an order up before you refund it. Be brief and kind.",
)


@agent.tool_plain
def look_up(order: str) -> dict[str, str | int]:
    """Look up the item and the price of an order."""
    if order not in ORDERS:
        raise ModelRetry(f"There is no order {order!r}.")
    return ORDERS[order]


@agent.tool_plain(requires_approval=True)
async def refund(order: str, cents: int) -> str:
    """Pay money back for an order."""
    key = current_step().idempotency_key  # the same in every attempt, so a crash does not pay twice
    if payments is not None:
        reply = await payments.post("/refunds", json={"order": order, "cents": cents}, headers={"Idempotency-Key": key})
        reply.raise_for_status()
    return f"{cents / 100:.2f} € for order {order} were refunded."


app = App(agents={"support": agent}, version="1")
