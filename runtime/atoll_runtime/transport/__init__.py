"""How learners and syncer talk: messages, codecs, and two transports behind one interface."""
