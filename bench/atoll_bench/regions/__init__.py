"""One model trained in four regions, over links such as lie between data centres: synchronously, and by Atoll."""
