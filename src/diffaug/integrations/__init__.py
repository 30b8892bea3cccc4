"""Other libraries: models that come from them, and models that go to them."""
