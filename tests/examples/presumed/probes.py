from runyard import Client

client: Client
