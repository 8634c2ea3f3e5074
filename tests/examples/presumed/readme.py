class Bank:
    async def refund(self, order: str, cents: int, key: str) -> str: ...


bank: Bank
