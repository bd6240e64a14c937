"""Steps of a training: which share of an update arrived in the weights, and what the loss scaler did."""
