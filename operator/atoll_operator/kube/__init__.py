"""What any operator needs: events, cache, client, queue, lease, apply, status."""
