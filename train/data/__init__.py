"""Reads profiles and labels them: from files to contexts with lifetime classes. Imports neither `train.model`
nor `train.studies`."""
