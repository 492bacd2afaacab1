"""The account of a training run as one web page. Reads what `report.json` holds; knows neither torch nor a model."""
