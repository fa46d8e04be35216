"""Trellis-coded quantisation with an rANS coder for each lane of numbers."""
