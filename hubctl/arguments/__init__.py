"""Arguments that several commands share: objects, times, manifests, completion."""
