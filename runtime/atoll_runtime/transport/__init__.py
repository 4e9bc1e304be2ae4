"""How learners and shards communicate: messages, codecs, and TLS sockets."""
