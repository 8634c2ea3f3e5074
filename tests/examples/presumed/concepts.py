class Bank:
    async def refund(self, amount: int, idempotency_key: str) -> str: ...


bank: Bank
