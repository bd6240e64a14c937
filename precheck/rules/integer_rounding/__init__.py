"""When the rule fires, what to do about it, and its rank."""

MEANING = "whole numbers (positions, indices, counts, labels, timesteps) are stored in a format that cannot hold them"
REMEDY = "keep them as integers, or in float32 until they have been turned into what the model reads"
RANK = 50
