"""Hours of load on a real cluster: what grows although the work stays the same, and the verdict."""
