"""How learners and shards talk: messages, codecs, and TLS sockets."""
