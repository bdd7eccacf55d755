"""Django app with the async tasks of ``waiting``, apart from the others: a worker with none needs no lane for them."""
