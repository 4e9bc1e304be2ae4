"""Bandwidth between sites: what each training method needs, and the utilisation that a link allows."""
