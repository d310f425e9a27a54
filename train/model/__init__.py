"""Fits models, exports them, reads and measures model files. Imports `train.data`, never `train.studies`."""
