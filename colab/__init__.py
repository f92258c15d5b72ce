"""Notebooks: NAME.py is the source, NAME.ipynb what Jupyter and Colab open, made from it by `python -m colab.build`."""
