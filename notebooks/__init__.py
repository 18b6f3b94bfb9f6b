"""The notebook for Colab and Kaggle; `python -m notebooks` writes it anew."""
