"""What any operator needs: watches, cache, client, queue, lease, apply, Events, logs, login."""
