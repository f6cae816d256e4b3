"""A run as one HTML file: `page.py` puts together what `content.py` and `charts.py` give."""
