"""The certificate authority of a run and the certificates of its pods."""
