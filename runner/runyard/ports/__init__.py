"""The protocols that stores and schedulers implement, with their arguments and results."""
