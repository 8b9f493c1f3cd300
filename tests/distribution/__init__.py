"""What is shipped: made with the same bytes each time, and tried where nothing else is."""
