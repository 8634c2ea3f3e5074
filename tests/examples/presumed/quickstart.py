from runyard import App, Message, RunContext

app: App
