"""Bandwidth between sites: what each method of training needs, and what a link allows."""
