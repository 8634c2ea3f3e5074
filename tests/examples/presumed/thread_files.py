from runyard import Client

client: Client
other: Client
