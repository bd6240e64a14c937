"""What is measured beside the comparison of each op with float32: additions that vanish, flipped decisions, casts, masks, integers, random draws."""
