"""The protocols that stores and schedulers implement, and the values that cross them."""
