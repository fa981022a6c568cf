"""`python -m shoestring`."""

from shoestring.cli.main import start

if __name__ == "__main__":
    start()
