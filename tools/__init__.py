"""Commands for developers: recording fixtures from the reference implementations."""
