"""Tests on a real Kubernetes: API server alone, with controllers, with real nodes."""
