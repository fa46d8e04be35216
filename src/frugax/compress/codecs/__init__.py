"""The codecs: whole-number grids, trellis, bit planes and lossless byte planes."""
