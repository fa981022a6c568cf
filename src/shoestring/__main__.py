"""`python -m shoestring`."""

from shoestring.cli.main import main

if __name__ == "__main__":
    main()
