"""When the rule fires, what to do about it, and its rank."""

MEANING = "quantities under different loss scales are added, compared or applied, or a scaler and its optimizer no longer step together"
REMEDY = "scale every loss, unscale_ once before gradients are read or changed, scaler.step each optimizer, then scaler.update() once"
RANK = 160
